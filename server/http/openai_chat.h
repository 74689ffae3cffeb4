// What only chats have: messages and tools.
#pragma once

#include "server/http/json_reader.h"
#include "server/http/openai_request.h"

namespace espalier::openai {

void ReadMessages(JsonReader& reader, proto::ChatPrompt* chat);

// tools, tool_choice and parallel_tool_calls. A call that must be made becomes the structured
// output: for a named tool its arguments alone, otherwise a list of {"name", "arguments"}.
void ReadTools(JsonReader& reader, Request* request);

}  // namespace espalier::openai
