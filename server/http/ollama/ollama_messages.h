// Parses messages and tools of Ollama's chats.
#pragma once

#include <string>

#include "espalier/v1/inference.pb.h"
#include "server/http/json_reader.h"

namespace espalier::ollama {

// Reads "messages", which may be absent or empty. Calls without an id get one; a tool's message
// without tool_call_id answers the first open call of its tool_name, or else the first open call.
// Images are refused.
void ReadMessages(openai::JsonReader& reader, v1::ChatPrompt* chat);

// Reads "tools".
void ReadTools(openai::JsonReader& reader, v1::ChatPrompt* chat);

// Fails for images, which no model here takes. `place` precedes the field in the message.
void RefuseImages(openai::JsonReader& reader, const std::string& place);

}  // namespace espalier::ollama
