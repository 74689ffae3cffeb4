// Drafting by one SSM, batched over requests, including the SSM's own KV cache. The cache holds a
// prefix of each request's tokens; a draft first prefills it up to the last token, the root of the
// tree. After verification, K and V of accepted nodes are kept. What is missing (the last level,
// which is never run, and tokens of other drafters) is computed by the next prefill.
//
// A tree grows level by level in one of four ways:
// - Beam search in the shape of an expansion (SpecInfer).
// - Draws without replacement in that shape, for rejection_sampling.h.
// - Best-first: the most probable continuations up to a number of nodes, in any shape. A level runs
//   only nodes that can still be parents of such, because a child is never more probable than its
//   parent; the result equals popping the best node one by one.
// - A chain of draws, as long as the next draw is expected to pay. That depends on the path before
//   the draw only, as rejection_sampling.h requires. Tokens that were drawn are never dropped.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "serving/kv/kv_cache.h"
#include "serving/runner/batch_builder.h"
#include "serving/runner/model_runner.h"
#include "serving/sampling/distribution.h"
#include "serving/sampling/logits_processor.h"
#include "serving/speculative/acceptance_estimator.h"
#include "serving/speculative/expansion.h"
#include "serving/speculative/step_latency.h"
#include "serving/speculative/token_tree.h"

namespace espalier {

// How a best-first tree grows.
struct BestFirst {
  int width = 0;       // nodes that one level runs, and children per node; 0: not best-first
  double price = 0;    // nodes with a smaller chance (draws with a smaller expectation) are omitted
  double parent = 0;   // nodes with a smaller chance get no children
  bool draws = false;  // sampled requests draw a chain instead of using coupled sampling
  // Calibrates the SSM's probabilities (null: taken as they are); `failing` multiplies this
  // request's odds of failure.
  const AcceptanceEstimator* acceptance = nullptr;
  double failing = 1;
};

class SsmDrafter {
 public:
  struct DraftRequest {
    int64_t request = 0;
    absl::Span<const int> tokens;  // of the request; the last one is the root if depth > 0
    int prefill = 0;               // run the SSM over tokens[0, prefill); all tokens if depth > 0
    int depth = 0;                 // levels to draft; 0: only prefill
    absl::string_view cache_salt;  // prefixes are shared with requests of the same salt only
    int max_nodes = 0;             // limit, except for draws in the expansion's shape
    SamplingParameters sampling;   // greedy: beam search; otherwise draws
    // Applied to the SSM's logits as to the LLM's, so that no masked token is drafted and draws
    // follow the distribution that they claim. Null: none.
    const LogitsProcessor* logits_processor = nullptr;
    // Sampled requests then use coupled sampling (sampling/gumbel_coupling.h), unless it draws.
    BestFirst best_first;
    TokenTree* tree = nullptr;  // the draft is merged into it, if depth > 0
  };

  // `source` distinguishes SSMs in proposals and random numbers. `runner` must outlive the drafter.
  SsmDrafter(ModelRunner& runner, int source, Expansion expansion, bool share_prefixes = false);

  // Whether runs are reported: the first steps after others find CPU caches full of other data.
  void set_observes(bool observes) { observes_ = observes; }
  // Reports the time of each run to `latency`, by this clock.
  void Measure(std::function<double()> seconds, StepLatency* latency);

  // Decides whether a best-first level of this depth (from 1) is run, by the acceptance chances of
  // its nodes and of all nodes drafted so far, these included. The first level always runs.
  using LevelPays = std::function<bool(int depth, absl::Span<const double> chances,
                                       absl::Span<const double> drafted)>;

  // Runs all requests, level by level. After an error, the SSM's state of these requests and their
  // trees are unchanged.
  absl::Status Draft(absl::Span<const DraftRequest> jobs, const LevelPays& worth = nullptr);

  // Call after verification: `accepted` are the tokens of the accepted path below the root of the
  // last draft, `next` the token after it (-1: unknown). Returns which candidates beside those
  // tokens were right, verified or not.
  absl::StatusOr<std::vector<DraftTrial>> Commit(int64_t request, absl::Span<const int> accepted,
                                                 int next = -1);

  // Forgets the request.
  void Release(int64_t request);
  // Drops the blocks that no request uses, because the SSM's cache was replaced.
  void ResetPrefixCache() { kv_.ResetPrefixCache(); }

  const KvCache& kv() const { return kv_; }
  int64_t batches() const { return batches_; }
  // Expected seconds of the runs of the last Draft, if measured.
  double expected_seconds() const { return expected_seconds_; }

 private:
  struct Node {
    int slot = -1;  // of the SSM's K and V; -1: not run
    double log_probability = 0;
    double probability = 0;  // given its parent
    // of the child that was not drawn; -1: a child was drawn, or the node was not run
    double expected_acceptance = -1;
    std::vector<int32_t> path;  // slots from depth 1 to the node
  };
  struct DraftTree {
    TokenTree tree{0};
    std::vector<Node> nodes;
    std::vector<int> frontier;  // nodes of the deepest level
    // Outputs for a frontier node: logits (of the last run, or in `ruled`) or the most probable
    // tokens.
    struct Next {
      absl::Span<const float> logits;
      absl::Span<const TokenProbability> best;  // instead, if the runner gave them
    };
    std::vector<Next> next;
    std::vector<std::vector<float>> ruled;
    int run = 0;  // nodes that have a slot
  };

  absl::Status Prefill(absl::Span<const DraftRequest> jobs);
  absl::Status RunFrontiers(absl::Span<const DraftRequest* const> jobs);
  absl::Status Run(absl::Span<const SequenceRows> sequences);
  // The output that a row requests whose children have this depth, from 0.
  int32_t RowOutputOf(const DraftRequest& job, int depth) const;
  static SamplingMetadata MetadataOf(const DraftRequest& job);
  // The outputs of the `row`-th requested row.
  DraftTree::Next NextOf(size_t job, size_t row) const;
  static absl::StatusOr<std::vector<TokenProbability>> BestOf(const DraftTree::Next& next,
                                                              int width,
                                                              const SamplingParameters& sampling,
                                                              int position);
  void Rule(const DraftRequest& job, DraftTree& draft) const;
  absl::Status Expand(const DraftRequest& job, int depth);
  absl::Status ExpandByBeam(int width, DraftTree& draft);
  absl::Status ExpandByDraws(const DraftRequest& job, int depth, DraftTree& draft);
  // Draws at most `count` children of the i-th frontier node from q.
  void DrawChildren(const DraftRequest& job, int depth, size_t i, int count, Distribution q,
                    DraftTree& draft) const;
  absl::Status ExpandChain(const DraftRequest& job, int depth, DraftTree& draft);
  absl::Status ExpandBestFirst(const DraftRequest& job, int depth, DraftTree& draft);
  absl::Status MergeIntoTree(const DraftRequest& job) const;
  double Now() const { return seconds_ ? seconds_() : 0; }

  ModelRunner& runner_;
  int source_;
  Expansion expansion_;
  bool share_prefixes_;
  KvCache kv_;
  absl::flat_hash_map<int64_t, DraftTree> drafts_;
  int64_t batches_ = 0;
  std::function<double()> seconds_;
  StepLatency* latency_ = nullptr;
  bool observes_ = true;
  double expected_seconds_ = 0;
  int run_rows_ = 0;             // of the last Run
  std::vector<double> drafted_;  // best-first: chances of the nodes of the draft, unordered
  StepOutput logits_;
};

}  // namespace espalier
