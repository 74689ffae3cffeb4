// What requests get where they are silent: a model's generation_config.json, as vLLM applies it.
#pragma once

#include "absl/status/statusor.h"
#include "espalier/v1/inference.pb.h"
#include "serving/tokenizer/generation_config.h"

namespace espalier {

// temperature, top_p, top_k, min_p, typical_p and repetition_penalty as the file has them. A file
// that says "do_sample": false asks for greedy decoding, temperature 0; one that says true and
// gives no temperature, for 1. InvalidArgument names the field that no request could have.
absl::StatusOr<v1::SamplingOptions> SamplingDefaults(const GenerationConfig& config);

// Sets the fields of `sampling` that are absent and that `defaults` has. What the request says
// stays, 0 included.
void FillSampling(const v1::SamplingOptions& defaults, v1::SamplingOptions* sampling);

}  // namespace espalier
