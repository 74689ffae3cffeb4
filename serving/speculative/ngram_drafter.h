// Drafts without a model: what followed the last tokens when they occurred before, in the request's
// own prompt and answer or in answers given earlier. Texts that repeat themselves (code, quotes,
// lists, chats that quote their documents) are drafted well, others not at all, at hardly any cost.
// Proposals are chosen, not drawn: sampled verification matches them exactly.
//
// Earlier answers (answer_history.h) change how fast an answer comes, never what it is; but beside
// drafts that are drawn (SampledDrafting::kIndependent and kWithoutReplacement), where their nodes shift
// the numbers that draws are made from, only its law stays the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "serving/sampling/logits_processor.h"
#include "serving/speculative/acceptance_estimator.h"
#include "serving/speculative/ngram_history.h"
#include "serving/speculative/ngram_index.h"
#include "serving/speculative/token_tree.h"

namespace espalier {

struct NgramOptions {
  int depth = 0;               // longest continuation; 0: off
  int branches = 2;            // continuations of one draft
  int history_tokens = 65536;  // of earlier answers; 0: none
};

class NgramDrafter {
 public:
  // The source of its proposals: beyond any SSM's number.
  static constexpr int kSource = 1 << 15;

  explicit NgramDrafter(NgramOptions options)
      : options_(options), history_(options.history_tokens) {}

  // A draft below the last of `tokens`, which are all tokens of the request; they begin with those
  // of its last draft. `depth` and `max_nodes` bound it. Chances are by `acceptance` (null: a guess
  // from the match's length), their odds to fail times `failing`. Nothing is drafted that `rules`
  // (null: none) exclude. `salt`: that of all drafts of the request; it gets what was answered to
  // requests of the same.
  TokenTree Draft(int64_t request, absl::Span<const int> tokens, int depth, int max_nodes,
                  const AcceptanceEstimator* acceptance, double failing, const LogitsProcessor* rules = nullptr,
                  absl::string_view salt = "");

  // As SsmDrafter::Commit: how the candidates of the last draft fared.
  std::vector<DraftTrial> Commit(int64_t request, absl::Span<const int> accepted, int next);

  // Forgets the request, and remembers the answer from tokens[prompt] on. No effect on one that
  // never drafted.
  void Release(int64_t request, absl::Span<const int> tokens, int prompt);

  int history_size() const { return history_.size(); }

 private:
  struct State {
    NgramIndex index;
    TokenTree tree{0};
    std::vector<double> probabilities;  // of the tree's nodes
    std::string salt;
  };

  NgramOptions options_;
  absl::flat_hash_map<int64_t, State> requests_;
  NgramHistory history_;
};

}  // namespace espalier
