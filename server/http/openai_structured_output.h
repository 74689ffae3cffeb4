// What an answer must be: response_format and vLLM's fields for the same.
#pragma once

#include <string>

#include "espalier/v1/inference.pb.h"
#include "server/http/json_reader.h"

namespace espalier::openai {

// A schema as a text: some clients write it as one.
std::string SchemaText(const nlohmann::ordered_json& schema);

// vLLM's structured_outputs, its older guided_... fields, and OpenAI's response_format.
void ReadStructuredOutput(JsonReader& reader, v1::GenerateRequest* generate);

}  // namespace espalier::openai
