#include "serving/distillation/evaluate_drafts.h"

#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

struct Question {
  std::vector<int> prompt;
  RequestOptions options;
};

// Runs `count` requests, no more than fit at once, and passes on their events by index.
absl::Status RunRequests(Engine& engine, int64_t count, int at_once,
                         const std::function<Question(int64_t)>& question,
                         const std::function<void(int64_t, const RequestEvent&)>& take,
                         const DistillationProgress& progress) {
  std::map<RequestId, int64_t> open;
  int64_t asked = 0, done = 0;
  while (done < count) {
    while (asked < count && static_cast<int>(open.size()) < at_once) {
      Question next = question(asked);
      absl::StatusOr<RequestId> id = engine.Submit(std::move(next.prompt), next.options);
      if (!id.ok()) {
        return absl::Status(id.status().code(),
                            absl::StrCat("prompt ", asked, ": ", id.status().message()));
      }
      open[*id] = asked++;
    }
    if (absl::Status status = engine.Step(); !status.ok()) return status;
    for (const RequestEvent& event : engine.TakeEvents()) {
      const auto it = open.find(event.id);
      if (it == open.end()) continue;
      take(it->second, event);
      if (!event.finished) continue;
      if (!event.error.ok()) {
        return absl::Status(event.error.code(),
                            absl::StrCat("prompt ", it->second, ": ", event.error.message()));
      }
      open.erase(it);
      ++done;
    }
    if (absl::Status status = progress(done, count); !status.ok()) return status;
  }
  return absl::OkStatus();
}

bool HasLeft(const DistillationPrompt& prompt, int width) {
  return CountLeft(absl::MakeConstSpan(&prompt, 1), width) > 0;
}

}  // namespace

absl::StatusOr<std::vector<std::vector<bool>>> ScoreContinuations(
    ModelRunner* model, const Tokenizer& tokenizer, const EngineOptions& options,
    absl::Span<const DistillationPrompt> prompts, int width, const DistillationProgress& progress) {
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(model, {}, &tokenizer, options);
  if (!engine.ok()) return engine.status();
  std::vector<size_t> asked;
  for (size_t p = 0; p < prompts.size(); ++p) {
    if (HasLeft(prompts[p], width)) asked.push_back(p);
  }
  std::vector<std::vector<bool>> agrees(prompts.size());
  const auto question = [&](int64_t i) {
    const DistillationPrompt& from = prompts[asked[static_cast<size_t>(i)]];
    Question all{from.prompt, {}};
    all.prompt.insert(all.prompt.end(), from.continuation.begin(), from.continuation.end());
    all.options.max_tokens = 1;
    all.options.prompt_logprobs = 0;
    return all;
  };
  const auto take = [&](int64_t i, const RequestEvent& event) {
    const size_t p = asked[static_cast<size_t>(i)];
    // The first events are of prompt tokens, from the second on.
    const size_t skipped = prompts[p].prompt.size() - 1;
    for (size_t t = skipped; t < event.prompt_logprobs.size(); ++t) {
      agrees[p].push_back(event.prompt_logprobs[t].rank == 1);
    }
  };
  absl::Status status = RunRequests(**engine, static_cast<int64_t>(asked.size()),
                                    options.max_requests, question, take, progress);
  if (!status.ok()) return status;
  return agrees;
}

absl::StatusOr<DraftEfficiency> MeasureDrafts(
    ModelRunner* llm, const std::vector<ModelRunner*>& ssms, const Tokenizer& tokenizer,
    const EngineOptions& options, absl::Span<const std::vector<int>> prompts, int tokens,
    const SamplingParameters& sampling, const DistillationProgress& progress) {
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(llm, ssms, &tokenizer, options);
  if (!engine.ok()) return engine.status();
  DraftEfficiency worth;
  const auto question = [&](int64_t i) {
    Question prompt{prompts[static_cast<size_t>(i)], {}};
    prompt.options.max_tokens = tokens;
    prompt.options.sampling = sampling;
    prompt.options.sampling.seed += static_cast<uint64_t>(i);
    return prompt;
  };
  const auto take = [&](int64_t, const RequestEvent& event) {
    if (!event.finished || event.usage.completion_tokens == 0) return;
    worth.tokens += event.usage.completion_tokens - 1;
    worth.verifications += event.usage.verification_steps;
    worth.drafted += event.usage.drafted_tokens;
    worth.accepted += event.usage.accepted_tokens;
  };
  absl::Status status = RunRequests(**engine, static_cast<int64_t>(prompts.size()),
                                    options.max_requests, question, take, progress);
  if (!status.ok()) return status;
  return worth;
}

}  // namespace espalier
