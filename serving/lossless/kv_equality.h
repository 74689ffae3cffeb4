// The check "KV": an answer's K and V come from committed tree nodes. A request that begins with
// prompt and answer takes them over by the prefix cache; its logits must be those of a fresh
// computation. Plain decoding fills a cache, too: the check passes only if it has seen what
// accepted nodes left.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "serving/lossless/lossless.h"
#include "serving/lossless/recording_model_runner.h"

namespace espalier {

// `engine`: how the SSMs draft for the watched LLM. Where no draft of theirs is accepted the
// answers are drafted once more, by one who was told them, in a small fixed tree. Errors as
// VerifyLossless.
absl::StatusOr<LosslessCheck> CheckKv(RecordingModelRunner& llm, const std::vector<ModelRunner*>& ssms,
                                      const Tokenizer& tokenizer, EngineOptions engine,
                                      const LosslessOptions& options);

}  // namespace espalier
