// Parses response_format and vLLM's structured output fields.
#pragma once

#include <string>

#include "espalier/v1/inference.pb.h"
#include "server/http/json_reader.h"

namespace espalier::openai {

// Returns a schema as text; some clients send it as a JSON string.
std::string SchemaText(const nlohmann::ordered_json& schema);

// Reads "strict" of `reader`. If it is set, fails for a schema with keywords that would be ignored,
// such as unknown formats.
void CheckStrictSchema(const nlohmann::ordered_json& schema, JsonReader& reader);

// Reads vLLM's structured_outputs, its older guided_* fields, and OpenAI's response_format.
void ReadStructuredOutput(JsonReader& reader, v1::GenerateRequest* generate);

}  // namespace espalier::openai
