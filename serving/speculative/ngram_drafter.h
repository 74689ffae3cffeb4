// N-gram drafting (prompt lookup): drafts, without a model, the tokens that followed the last few
// tokens when they occurred before, in the request's own prompt and output or in earlier outputs.
// It works well for repetitive text (code, quotes, lists, chats that quote documents) and costs
// almost nothing elsewhere. Its proposals are chosen, not drawn, so sampled verification accepts
// them by exact match.
//
// Earlier outputs (ngram_history.h) change the speed of a request, never its tokens, with one
// exception: beside draws (SampledDrafting::kWithoutReplacement), their nodes shift the random
// numbers, so that only the distribution stays the same.
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
  int depth = 0;               // longest continuation in tokens; 0: off
  int branches = 2;            // continuations per draft
  int history_tokens = 65536;  // of earlier outputs; 0: none
};

class NgramDrafter {
 public:
  // The source number of its proposals, larger than any SSM's.
  static constexpr int kSource = 1 << 15;

  explicit NgramDrafter(NgramOptions options)
      : options_(options), history_(options.history_tokens) {}

  // Drafts below the last of `tokens`: all tokens of the request, which extend those of its
  // previous call. `depth` and `max_nodes` limit the tree. Chances are estimated by `acceptance`
  // (null: from the match length), with the odds of failure multiplied by `failing`. Tokens that
  // `rules` (null: none) mask are not drafted. `salt`: the request's cache salt, the same in all
  // calls; only outputs of requests with this salt are used.
  TokenTree Draft(int64_t request, absl::Span<const int> tokens, int depth, int max_nodes,
                  const AcceptanceEstimator* acceptance, double failing,
                  const LogitsProcessor* rules = nullptr, absl::string_view salt = "");

  // As SsmDrafter::Commit: which candidates of the last draft were right.
  std::vector<DraftTrial> Commit(int64_t request, absl::Span<const int> accepted, int next);

  // Forgets the request, and adds its output, tokens[prompt] and later, to the history. No effect
  // on a request that never drafted.
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
