// Parses the content blocks of Anthropic messages into chat turns.
#pragma once

#include "espalier/v1/inference.pb.h"
#include "server/http/json_reader.h"

namespace espalier::anthropic {

// Reads the field "system" into a turn before all others.
void ReadSystem(openai::JsonReader& reader, v1::ChatPrompt* chat);

// Reads the field "messages". Reasoning, text and calls of one message form one turn; consecutive
// turns of one role are merged; each tool result is its own turn and must answer an earlier call.
void ReadMessages(openai::JsonReader& reader, v1::ChatPrompt* chat);

}  // namespace espalier::anthropic
