// Sampling defaults from a model's generation_config.json, applied as vLLM does.
#pragma once

#include "absl/status/statusor.h"
#include "espalier/v1/inference.pb.h"
#include "serving/tokenizer/generation_config.h"

namespace espalier {

// Returns temperature, top_p, top_k, min_p, typical_p and repetition_penalty of the file.
// "do_sample": false means greedy decoding (temperature 0); true without a temperature means 1.
// Returns InvalidArgument naming a field with a value that no request may have.
absl::StatusOr<v1::SamplingOptions> SamplingDefaults(const GenerationConfig& config);

// Fills in the fields of `sampling` that are absent. Explicit values stay, including 0.
void FillSampling(const v1::SamplingOptions& defaults, v1::SamplingOptions* sampling);

}  // namespace espalier
