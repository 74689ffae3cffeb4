#include "server/inference/services/lossless_verification.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "serving/lossless/lossless.h"

namespace espalier {
namespace {

constexpr int kMaxPrompts = 4096;
constexpr int kAnswerTokens = 48;
constexpr int kSamples = 20000;
constexpr int kDistributionTokens = 3;
constexpr int kDistributionTopK = 3;

// Prose, dialogue, code, numbers, a list, another script: both predictable and unpredictable text.
const char* const kPrompts[] = {
    "In the beginning God created the heaven and the earth. And the earth was without form, and",
    "Q: Why does bread rise when it is baked?\nA: Because",
    "def binary_search(values, wanted):\n    low, high = 0, len(values)\n    while",
    "1, 1, 2, 3, 5, 8, 13,",
    "Shopping list:\n- two pounds of flour\n- a dozen eggs\n-",
    "Il \u00e9tait une fois, dans un pays lointain, un roi qui",
};

int GivenOr(int given, int fallback) { return given == 0 ? fallback : given; }

// Tokenizes the prompts, each short enough to leave `answer` tokens of `context`. Default prompts
// are truncated, or skipped if the tokenizer cannot encode them.
absl::StatusOr<std::vector<std::vector<int>>> PromptsOf(const v1::VerifyLosslessRequest& request,
                                                        const Tokenizer& tokenizer, int context,
                                                        int answer) {
  // The KV check submits prompt and answer as a new prompt, which needs one token more.
  const int most = context - answer - 1;
  if (most < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("field 'answer_tokens' is ", answer, ", the context ", context,
                     ": at least 2 tokens must be left for a prompt"));
  }
  if (request.prompts_size() > kMaxPrompts) {
    return absl::InvalidArgumentError(absl::StrCat("field 'prompts' has ", request.prompts_size(),
                                                   " entries, expected at most ", kMaxPrompts));
  }
  std::vector<std::vector<int>> prompts;
  for (int i = 0; i < request.prompts_size(); ++i) {
    absl::StatusOr<std::vector<int>> tokens =
        tokenizer.TryEncode(request.prompts(i), {.add_special = true});
    if (!tokens.ok()) {
      return absl::Status(tokens.status().code(),
                          absl::StrCat("prompts[", i, "]: ", tokens.status().message()));
    }
    if (tokens->empty() || static_cast<int>(tokens->size()) > most) {
      return absl::InvalidArgumentError(
          absl::StrCat("prompts[", i, "] has ", tokens->size(), " tokens, expected 1 to ", most,
                       ": with ", answer, " tokens of answer it must fit a context of ", context));
    }
    prompts.push_back(*std::move(tokens));
  }
  if (!prompts.empty()) return prompts;
  for (const char* text : kPrompts) {
    absl::StatusOr<std::vector<int>> tokens = tokenizer.TryEncode(text, {.add_special = true});
    if (!tokens.ok() || tokens->empty()) continue;
    if (static_cast<int>(tokens->size()) > most) tokens->resize(most);
    prompts.push_back(*std::move(tokens));
  }
  if (!prompts.empty()) return prompts;
  return absl::InvalidArgumentError(
      "field 'prompts' is empty, and the LLM's tokenizer has no tokens for any of the "
      "coordinator's own prompts; give some");
}

v1::LosslessReport ReportOf(const LosslessReport& report) {
  v1::LosslessReport out;
  out.set_passed(report.passed());
  for (const LosslessCheck& check : report.checks) {
    v1::LosslessCheck* one = out.add_checks();
    one->set_name(check.name);
    one->set_passed(check.passed);
    one->set_cases(check.cases);
    one->set_detail(check.detail);
  }
  out.set_smallest_margin(report.smallest_margin);
  out.set_accepted_per_step(report.accepted_per_step);
  return out;
}

}  // namespace

absl::StatusOr<v1::LosslessReport> RunLosslessVerification(const v1::VerifyLosslessRequest& request,
                                                           ModelServer* models, const Clock& clock,
                                                           const LosslessListener& listener) {
  if (request.models().ssm_artifacts().empty() && request.models().ngram_depth() == 0 &&
      !request.models().tune_speculation()) {
    return absl::InvalidArgumentError(
        "field 'models' has neither 'ssm_artifacts' nor 'ngram_depth': nothing would be drafted, "
        "and nothing shown");
  }
  if (!request.models().adapters().empty()) {
    return absl::InvalidArgumentError(
        "field 'models.adapters': the checks are of the LLM itself; leave adapters out");
  }
  v1::LosslessProgress progress;
  progress.set_stage("loading");
  if (absl::Status status = listener(progress); !status.ok()) return status;
  v1::ServeModelRequest wanted = request.models();
  wanted.clear_name();
  absl::StatusOr<ModelServer::Prepared> pair = models->Prepare(wanted);
  if (!pair.ok()) return pair.status();

  const RunnerLimits limits = pair->parts.llm->limits();
  const int length = pair->options.max_sequence_length;
  const int context = length > 0 ? std::min(length, limits.max_positions) : limits.max_positions;
  LosslessOptions options;
  options.engine = pair->options;
  options.answer = GivenOr(request.answer_tokens(), std::min(kAnswerTokens, context / 2));
  options.draws = GivenOr(request.draws(), kSamples);
  options.distribution_tokens = GivenOr(request.distribution_tokens(), kDistributionTokens);
  options.distribution_top_k = GivenOr(request.distribution_top_k(), kDistributionTopK);
  if (request.temperature() != 0) options.temperature = request.temperature();
  constexpr int kLeast = 3;  // one before a tree and one after it
  if (options.answer < kLeast) {
    return absl::InvalidArgumentError(absl::StrCat("field 'answer_tokens' is ", options.answer,
                                                   ", expected 0 or at least ", kLeast));
  }
  absl::StatusOr<std::vector<std::vector<int>>> prompts =
      PromptsOf(request, *pair->parts.tokenizer, context, options.answer);
  if (!prompts.ok()) return prompts.status();
  options.prompts = *std::move(prompts);
  options.progress = [&](const LosslessProgress& now) {
    progress.set_stage(now.check);
    progress.set_done(now.done);
    progress.set_total(now.total);
    return listener(progress);
  };

  const absl::Time start = clock.Now();
  std::vector<ModelRunner*> ssms;
  for (const auto& ssm : pair->parts.ssms) ssms.push_back(ssm.get());
  absl::StatusOr<LosslessReport> report =
      VerifyLossless(*pair->parts.llm, ssms, *pair->parts.tokenizer, options);
  if (!report.ok()) return report.status();
  v1::LosslessReport out = ReportOf(*report);
  *out.mutable_models() = pair->Describe(context, start);
  out.set_seconds(absl::ToDoubleSeconds(clock.Now() - start));
  return out;
}

}  // namespace espalier
