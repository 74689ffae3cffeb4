// Parses the fields that Ollama's generating and embedding routes share.
#pragma once

#include <optional>

#include "espalier/v1/inference.pb.h"
#include "server/http/json_reader.h"

namespace espalier::ollama {

// Limits that only the model can check.
struct LoadOptions {
  std::optional<int> num_ctx;  // tokens of prompt and answer together
  bool unload = false;         // keep_alive is 0
};

// Reads "options" and "keep_alive". Sampling goes to `generate`; absent fields stay absent, since
// the model may have its own defaults. Accepts what has no effect on answers, such as num_gpu;
// refuses by name what would have one and is not supported, such as mirostat, and unknown options.
void ReadOptions(openai::JsonReader& reader, v1::GenerateRequest* generate, LoadOptions* load);

// Reads "format": "json", or a JSON schema.
void ReadFormat(openai::JsonReader& reader, v1::GenerateRequest* generate);

// Reads "logprobs" and "top_logprobs".
void ReadLogprobs(openai::JsonReader& reader, v1::GenerateRequest* generate);

}  // namespace espalier::ollama
