// The check "KV": K and V of an output that was drafted come from committed tree nodes. A request
// with prompt and output as its prompt attaches them by the prefix cache; its logits must equal
// those of a computation from scratch. Incremental decoding fills a cache, too, so the check passes
// only if it has seen slots of accepted nodes.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "serving/lossless/lossless.h"
#include "serving/lossless/recording_model_runner.h"

namespace espalier {

// `engine`: how the SSMs draft for the recorded LLM. If none of their drafts is accepted, the
// outputs are generated again with a drafter that knows them, in a small fixed tree. Errors as
// VerifyLossless.
absl::StatusOr<LosslessCheck> CheckKv(RecordingModelRunner& llm,
                                      const std::vector<ModelRunner*>& ssms,
                                      const Tokenizer& tokenizer, EngineOptions engine,
                                      const LosslessOptions& options);

}  // namespace espalier
