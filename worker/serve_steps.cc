#include "worker/serve_steps.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "serving/runner/serving_proto.h"

namespace espalier {
namespace {

constexpr size_t kNumbersPerMessage = 1 << 20;  // 4 MiB

// Sends a step's result in one or more messages. `result` is a reused buffer.
bool SendResult(uint64_t number, const RunnerOutput& logits, v1::ServingResult& result,
                StepStream* stream) {
  size_t sent = 0, sent_hidden = 0;
  result.Clear();
  result.set_number(number);
  SetChoices(logits, &result);
  do {
    size_t room = kNumbersPerMessage;
    const auto take = [&room](const std::vector<float>& from, size_t* taken) {
      const size_t count = std::min(room, from.size() - *taken);
      const char* const begin = reinterpret_cast<const char*>(from.data() + *taken);
      room -= count;
      *taken += count;
      return absl::string_view(begin, count * sizeof(float));
    };
    const absl::string_view values = take(logits.values, &sent);
    result.set_logits(values.data(), values.size());
    const absl::string_view hidden = take(logits.hidden, &sent_hidden);
    result.set_hidden(hidden.data(), hidden.size());
    result.set_more(sent < logits.values.size() || sent_hidden < logits.hidden.size());
    if (!stream->Write(result)) return false;
    result.clear_choice_counts();
    result.clear_choice_tokens();
    result.clear_choice_probabilities();
    result.clear_logprobs();
  } while (result.more());
  return true;
}

}  // namespace

absl::Status ServeSteps(ServingJob& job, StepStream* stream) {
  if (!stream->Write(v1::ServingResult())) return absl::OkStatus();
  v1::ServingStep step;
  RunnerBatch batch;
  RunnerOutput logits;
  v1::ServingResult result;
  uint64_t number = 0;
  while (stream->Read(&step)) {
    if (step.number() != ++number) {
      return absl::InvalidArgumentError(
          absl::StrCat("step ", step.number(), " came where step ", number, " was expected"));
    }
    absl::Status refused = TakeBatch(step, &batch);
    if (refused.ok()) refused = job.Check(batch);
    if (refused.ok()) {
      if (absl::Status s = job.Step(batch, &logits); !s.ok()) return s;
    }
    if (!job.has_logits()) continue;
    if (refused.ok()) {
      if (!SendResult(number, logits, result, stream)) return absl::OkStatus();
      continue;
    }
    result.Clear();
    result.set_number(number);
    result.set_refused(std::string(refused.message()));
    if (!stream->Write(result)) return absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace espalier
