// Proof, for a given LLM and given SSMs, that speculation does not change answers. Six checks:
// - greedy: token for token the answers of incremental decoding, over all prompts, whether tokens
//   are chosen from logits that the runner shows, or by the runner, as in service; how close the
//   LLM's two best logits ever came says how near the answers were to being ambiguous;
// - seeds: with shared noise, the same of sampled requests;
// - rules: the same of greedy ones with penalties, by which the runner edits logits where they are;
// - enumeration: every outcome of every draw and every test of acceptance, weighted, from the
//   models' own distributions, gives exactly the LLM's law of the next tokens;
// - law: sampled answers through the whole engine have the LLM's law, by a chi-square test;
// - KV: what the cache holds after answers that were accepted in pieces gives, bit for bit, the
//   logits of a fresh computation; at least one accepted tree node has left something there.
// Sampled checks cut distributions to a few tokens (top-k), so that all short answers can be
// counted whatever the vocabulary; the law that they check is that of the cut distributions.
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

// What runs, and how far it is: tokens of "greedy", "seeds" and "penalties", answers of "distribution", prompts
// of "KV".
struct LosslessProgress {
  std::string check;
  int64_t done = 0;
  int64_t total = 0;  // 0: not known before
};

struct LosslessOptions {
  // How to speculate: the expansion, best-first trees, n-gram drafts, tuning, limits.
  EngineOptions engine;
  std::vector<std::vector<int>> prompts;  // at least one, each shorter than the context
  int answer = 48;                        // tokens of greedy and seeded answers
  int draws = 20000;                      // answers of the law check
  int distribution_tokens = 3;                     // of each of them; 1 to 4
  int distribution_top_k = 3;                      // 2 to 5
  double temperature = 1;
  // Called between steps (optional). An error ends the proof, which returns it.
  std::function<absl::Status(const LosslessProgress&)> progress;
};

struct LosslessCheck {
  std::string name;
  bool passed = false;
  int64_t cases = 0;
  std::string detail;  // what was found, in a sentence
};

struct LosslessReport {
  std::vector<LosslessCheck> checks;
  // The least difference between the LLM's two best logits at a token of a greedy answer.
  double smallest_margin = 0;
  double accepted_per_step = 0;  // of the greedy check

  bool passed() const;
};

// Errors are those of the runners and of the options (InvalidArgument with the field); an answer
// that differs is a check that failed. The runners serve nothing else meanwhile; what their KV
// caches held is lost.
absl::StatusOr<LosslessReport> VerifyLossless(ModelRunner& llm, std::vector<ModelRunner*> ssms,
                                              const Tokenizer& tokenizer,
                                              const LosslessOptions& options);

}  // namespace espalier
