// Carries a GenerateRequest out: one path for gRPC and HTTP, so that both can do the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/inference.pb.h"
#include "server/inference/requests/chat_prompt.h"
#include "server/inference/models/model_server.h"

namespace espalier {

// Limits of one request.
inline constexpr int kMaxAnswers = 128;  // n, best_of
inline constexpr int kMaxBadWords = 256;
inline constexpr size_t kMaxBadWordBytes = 1024;    // of one of them
inline constexpr size_t kMaxBadWordsBytes = 65536;  // of all
inline constexpr int kMaxLogitBiases = 65536;
// Candidates with their log-probabilities, of all tokens of prompts and answers: each has a text.
inline constexpr int64_t kMaxLogprobs = int64_t{1} << 23;

// Answers on their way. Thread-safe.
class Generation {
 public:
  virtual ~Generation() = default;
  // Ends what has not ended: those answers' last replies say "cancelled".
  virtual void Cancel() = 0;
  // The same, by a listener of the same model: on the engine's thread, which must not be the one
  // that lets go of the model last, and need not hold it.
  virtual void Stop() = 0;
};

// Called on the engine's thread, in order; must not block. Each answer ends with a reply that has a
// finish_reason; the last reply of all has the usage. An error comes once, with nothing after it.
using GenerationListener =
    std::function<void(const absl::StatusOr<v1::GenerateReply>& reply, bool last)>;

// Tokens of a prompt beside which there is room for an answer of `max_tokens`, or, if these are
// more, of half the context.
int MaxPromptTokens(int context, int max_tokens);

// The request's prompt, template and truncation applied. Errors name the field.
absl::StatusOr<Prompt> PromptOf(const v1::GenerateRequest& request, const LoadedModel& model);

// Checks and submits a request. `models` gives seeds to requests that bring none; `metrics` may be
// null. Errors that can be known now come back; later ones (the queue is full) go to the listener.
absl::StatusOr<std::shared_ptr<Generation>> StartGeneration(const v1::GenerateRequest& request,
                                                            std::shared_ptr<LoadedModel> model,
                                                            ModelServer* models,
                                                            ServingMetrics* metrics,
                                                            GenerationListener listener);

// The same for several prompts of one request, which is checked once and kept once: each of
// `prompts` has a text or tokens and nothing else. Only as many are submitted at once as the queue
// has room for; the next ones follow as these end. An error ends them all, and cancelled prompts
// that were not submitted yet have no reply.
using BatchListener = std::function<void(
    int prompt, const absl::StatusOr<v1::GenerateReply>& reply, bool last_of_prompt)>;
absl::StatusOr<std::shared_ptr<Generation>> StartBatch(
    const v1::GenerateRequest& request, const std::vector<v1::GenerateRequest>& prompts,
    std::shared_ptr<LoadedModel> model, ModelServer* models, ServingMetrics* metrics,
    BatchListener listener);

}  // namespace espalier
