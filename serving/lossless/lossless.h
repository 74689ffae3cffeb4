// Proves, for a given LLM and given SSMs, that speculation does not change outputs. Six checks:
// - greedy: outputs equal those of incremental decoding token for token, for all prompts, whether
//   tokens are chosen from returned logits or by the runner, as in service. The smallest difference
//   between the LLM's two best logits shows how close outputs came to being ambiguous.
// - seeds: the same for sampled requests with coupled sampling.
// - penalties: the same for greedy requests with penalties, which the runner applies to the logits.
// - enumeration: all outcomes of all draws and acceptance tests, weighted, from the models' own
//   distributions, give exactly the LLM's distribution of the next tokens.
// - distribution: sampled outputs of the whole engine have the LLM's distribution, by a chi-square
//   test.
// - KV: the KV cache after drafted outputs gives, bit for bit, the logits of a computation from
//   scratch; at least one accepted tree node is in it. Sampled checks cut distributions to a few
//   tokens (top-k), so that all short outputs can be enumerated for any vocabulary; they check the
//   cut distributions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "serving/engine/engine.h"
#include "serving/runner/model_runner.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

// Progress: tokens of "greedy", "seeds" and "penalties", outputs of "distribution", prompts of
// "KV".
struct LosslessProgress {
  std::string check;
  int64_t done = 0;
  int64_t total = 0;  // 0: unknown
};

struct LosslessOptions {
  // How to draft: expansion, best-first trees, n-gram drafts, tuning, limits.
  EngineOptions engine;
  std::vector<std::vector<int>> prompts;  // at least one, each shorter than the context
  int answer = 48;                        // tokens of greedy and seeded outputs
  int draws = 20000;                      // outputs of the distribution check
  int distribution_tokens = 3;            // of each of these outputs; 1 to 4
  int distribution_top_k = 3;             // 2 to 5
  double temperature = 1;
  // Called between steps (optional). If it returns an error, VerifyLossless returns that.
  std::function<absl::Status(const LosslessProgress&)> progress;
};

struct LosslessCheck {
  std::string name;
  bool passed = false;
  int64_t cases = 0;
  std::string detail;  // the finding, in a sentence
};

struct LosslessReport {
  std::vector<LosslessCheck> checks;
  // The smallest difference between the LLM's two best logits at a token of a greedy output.
  double smallest_margin = 0;
  double accepted_per_step = 0;  // of the greedy check

  bool passed() const;
};

// Returns errors of the runners, or InvalidArgument naming the option; a different output is a
// failed check, not an error. The runners must serve nothing else meanwhile; the content of their
// KV caches is lost.
absl::StatusOr<LosslessReport> VerifyLossless(ModelRunner& llm, std::vector<ModelRunner*> ssms,
                                              const Tokenizer& tokenizer,
                                              const LosslessOptions& options);

}  // namespace espalier
