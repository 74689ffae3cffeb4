// Executes a GenerateRequest. gRPC and HTTP share this path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/inference.pb.h"
#include "server/inference/models/model_server.h"
#include "server/inference/requests/chat_prompt.h"

namespace espalier {

// Limits per request.
inline constexpr int kMaxAnswers = 128;  // n, best_of
inline constexpr int kMaxBadWords = 256;
inline constexpr size_t kMaxBadWordBytes = 1024;    // each
inline constexpr size_t kMaxBadWordsBytes = 65536;  // in total
inline constexpr int kMaxLogitBiases = 65536;
// Logprob entries of all tokens of prompts and answers; each carries its text.
inline constexpr int64_t kMaxLogprobs = int64_t{1} << 23;

// A running generation. Thread-safe.
class Generation {
 public:
  virtual ~Generation() = default;
  // Cancels unfinished answers; their last replies say "cancelled".
  virtual void Cancel() = 0;
  // Same as Cancel, for a listener of the same model. It runs on the engine's thread, which must
  // not drop the last reference to the model; Stop takes none.
  virtual void Stop() = 0;
};

// Called on the engine's thread, in order; must not block. Each answer ends with a reply that has a
// finish_reason; the last reply of all has the usage. An error is the last call.
using GenerationListener =
    std::function<void(const absl::StatusOr<v1::GenerateReply>& reply, bool last)>;

// Returns the prompt length that leaves room for an answer of `max_tokens`, or of half the context,
// if that is less.
int MaxPromptTokens(int context, int max_tokens);

// Returns the request's prompt after template and truncation. Errors name the field.
absl::StatusOr<Prompt> PromptOf(const v1::GenerateRequest& request, const LoadedModel& model);

// Checks and submits a request. `models` supplies a seed if the request has none; `metrics` may be
// null. Returns errors that are known at once; later ones (queue full) go to the listener.
absl::StatusOr<std::shared_ptr<Generation>> StartGeneration(const v1::GenerateRequest& request,
                                                            std::shared_ptr<LoadedModel> model,
                                                            ModelServer* models,
                                                            ServingMetrics* metrics,
                                                            GenerationListener listener);

// Same for several prompts of one request, which is checked and stored once; each of `prompts` has
// only a text or tokens. Submits only as many at once as the queue holds, and the next as these
// end. An error ends all of them. Cancelled prompts that were not submitted get no reply.
using BatchListener = std::function<void(int prompt, const absl::StatusOr<v1::GenerateReply>& reply,
                                         bool last_of_prompt)>;
absl::StatusOr<std::shared_ptr<Generation>> StartBatch(
    const v1::GenerateRequest& request, const std::vector<v1::GenerateRequest>& prompts,
    std::shared_ptr<LoadedModel> model, ModelServer* models, ServingMetrics* metrics,
    BatchListener listener);

}  // namespace espalier
