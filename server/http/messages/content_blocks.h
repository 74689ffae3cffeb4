// Messages of Anthropic's API, which are lists of blocks, as the turns of a chat.
#pragma once

#include "espalier/v1/inference.pb.h"
#include "server/http/json_reader.h"

namespace espalier::anthropic {

// Field "system": a turn before all others.
void ReadSystem(openai::JsonReader& reader, v1::ChatPrompt* chat);

// Field "messages". Thoughts, text and calls of one message are one turn, each result of a tool is
// a turn of its own, and turns of one role in a row are one. A result must answer a call before it.
void ReadMessages(openai::JsonReader& reader, v1::ChatPrompt* chat);

}  // namespace espalier::anthropic
