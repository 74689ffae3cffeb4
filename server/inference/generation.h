// Carries a GenerateRequest out: one path for gRPC and HTTP, so that both can do the same.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/inference.pb.h"
#include "server/inference/chat_prompt.h"
#include "server/inference/model_server.h"

namespace espalier {

// Limits of one request.
inline constexpr int kMaxAnswers = 128;  // n, best_of
inline constexpr int kMaxBadWords = 256;
inline constexpr int kMaxBiases = 65536;

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
    std::function<void(const absl::StatusOr<proto::GenerateReply>& reply, bool last)>;

// The request's prompt, template and truncation applied. Errors name the field.
absl::StatusOr<Prompt> PromptOf(const proto::GenerateRequest& request, const LoadedModel& model);

// Checks and submits a request. `models` gives seeds to requests that bring none; `metrics` may be
// null. Errors that can be known now come back; later ones (the queue is full) go to the listener.
absl::StatusOr<std::shared_ptr<Generation>> StartGeneration(const proto::GenerateRequest& request,
                                                            std::shared_ptr<LoadedModel> model,
                                                            ModelServer* models,
                                                            ServingMetrics* metrics,
                                                            GenerationListener listener);

}  // namespace espalier
