// What only chats have: messages, tools, thoughts.
#pragma once

#include "server/http/json_reader.h"
#include "server/http/openai_request.h"

namespace espalier::openai {

void ReadMessages(JsonReader& reader, proto::ChatPrompt* chat);

// tools, tool_choice and parallel_tool_calls.
void ReadTools(JsonReader& reader, proto::ChatPrompt* chat);

// reasoning_effort, include_reasoning (vLLM's) and reasoning_format (llama.cpp's).
void ReadReasoning(JsonReader& reader, Request* request);

}  // namespace espalier::openai
