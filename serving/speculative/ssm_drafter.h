// Drafting by one SSM, batched over requests, with the bookkeeping of the SSM's own KV cache. That
// cache holds a beginning of each request's tokens; before a draft it follows up to the last token,
// which is the root of the tree. After verification the nodes on the accepted path whose K and V
// the SSM has are kept; what it lacks (levels it never ran, tokens another SSM proposed) is
// computed by the next follow.
//
// Four ways to grow a tree, level by level. By beam search, in the shape of an expansion. By draws
// in that shape, for the laws of verify.h. Best first: of all continuations the most probable ones
// up to a number of nodes, whatever their shape; a level runs only nodes that could still be
// parents of such (a child is never more probable than its parent), so the outcome is that of
// popping the best node one by one, in as many runs as there are levels. Or a chain of draws, as
// long as the next one is expected to pay: that depends on the path to it, and on nothing at or
// below it, so the laws of verify.h hold. What was drawn stays, whatever came of it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "serving/runner/model_runner.h"
#include "serving/runner/batch_builder.h"
#include "serving/kv/kv_cache.h"
#include "serving/sampling/distribution.h"
#include "serving/sampling/logits_processor.h"
#include "serving/speculative/acceptance_estimator.h"
#include "serving/speculative/step_latency_model.h"
#include "serving/speculative/expansion.h"
#include "serving/speculative/token_tree.h"

namespace espalier {

// How a best-first tree grows.
struct BestFirst {
  int width = 0;      // nodes that one level runs, and children that one node gets; 0: not this way
  double price = 0;   // nodes of a smaller chance are left out; a draw, if that is expected
  double parent = 0;  // nodes of a smaller chance get no children
  bool draws = false;  // sampled requests draw a chain, instead of choosing for shared noise
  // What the SSM's probabilities are worth (null: what they say), and how much likelier to fail,
  // in odds, for this request.
  const AcceptanceEstimator* acceptance = nullptr;
  double failing = 1;
};

class SsmDrafter {
 public:
  struct DraftRequest {
    int64_t request = 0;
    absl::Span<const int> tokens;  // of the request; the last one is the root if depth > 0
    int prefill = 0;                 // run the SSM over tokens[0, follow); all of them if depth > 0
    int depth = 0;                 // levels to draft; 0: only follow
    absl::string_view cache_salt;  // prefixes are shared with requests of the same one only
    int max_nodes = 0;             // drafts stop there, but for draws in the expansion's shape
    SamplingParameters sampling;   // greedy: beam search; otherwise independent draws
    // What the LLM's logits will be put through, up to the root: the SSM's go through it, too, so
    // that nothing is drafted which could not be accepted, and draws are from what is said to be
    // their distribution. Null: none.
    const LogitsProcessor* logits_processor = nullptr;
    bool without_replacement = false;  // the draws of one node all differ
    // Sampled requests then draft for shared noise (sampling/coupled.h), unless it draws.
    BestFirst best_first;
    TokenTree* tree = nullptr;  // the draft is merged into it, if depth > 0
  };

  // `source` tells this SSM from others in proposals and noise. `runner` must outlive the drafter.
  SsmDrafter(ModelRunner& runner, int source, Expansion expansion, bool share_prefixes = false);

  // From now on tells `cost` what each run took, by this clock.
  void Measure(std::function<double()> seconds, StepLatencyModel* cost);

  // Says whether a best-first level of nodes of this depth (from 1) is worth running, by the
  // chances that they are accepted, and those of all nodes that were drafted so far, these among
  // them. The first level always runs.
  using LevelPays = std::function<bool(int depth, absl::Span<const double> chances,
                                         absl::Span<const double> drafted)>;

  // Runs all jobs, level by level. If an error comes back, the SSM's state of the jobs' requests is
  // as it was before, and no tree has changed.
  absl::Status Draft(absl::Span<const DraftRequest> jobs, const LevelPays& worth = nullptr);

  // After verification: `accepted` are the tokens of the accepted path below the root of the last
  // draft, `next` the one that followed it (-1: not known). Returns how all candidates that stood
  // beside those tokens fared, sent to the LLM or not.
  absl::StatusOr<std::vector<DraftTrial>> Commit(int64_t request, absl::Span<const int> accepted,
                                            int next = -1);

  // Forgets the request.
  void Release(int64_t request);
  // Forgets what it kept of requests that are no more: the SSM's cache is another one.
  void ResetPrefixCache() { kv_.ResetPrefixCache(); }

  const KvCache& kv() const { return kv_; }
  int64_t batches() const { return batches_; }
  // Seconds that the runs of the last Draft were expected to take, if it is measured.
  double expected_seconds() const { return expected_seconds_; }

 private:
  struct Node {
    int slot = -1;  // where the SSM has its K and V; -1: not run
    double log_probability = 0;
    double probability = 0;     // given its parent
    double expected_acceptance = -1;       // of the child that was not drawn; -1: one was, or it was not run
    std::vector<int32_t> path;  // slots from depth 1 to the node
  };
  struct DraftTree {
    TokenTree tree{0};
    std::vector<Node> nodes;
    std::vector<int> frontier;  // nodes of the deepest level
    // Of the frontier; in the last run's logits, or in `ruled`.
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
  // What is wished of a row whose children are of this depth, from 0.
  int32_t RowOutputOf(const DraftRequest& job, int depth) const;
  static SamplingMetadata MetadataOf(const DraftRequest& job);
  // What the runner said of the `row`-th wanted row of a job.
  DraftTree::Next NextOf(size_t job, size_t row) const;
  static absl::StatusOr<std::vector<TokenProbability>> BestOf(const DraftTree::Next& next, int width,
                                                         const SamplingParameters& sampling,
                                                         int position);
  void Rule(const DraftRequest& job, DraftTree& draft) const;
  absl::Status Expand(const DraftRequest& job, int depth);
  absl::Status ExpandByBeam(int width, DraftTree& draft);
  absl::Status ExpandByDraws(const DraftRequest& job, int depth, DraftTree& draft);
  // Draws at most `count` children of the frontier's i-th node, from q.
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
  StepLatencyModel* cost_ = nullptr;
  double expected_seconds_ = 0;
  StepWork run_;                 // the last Run
  std::vector<double> drafted_;  // best first: chances of what the draft would hand over, unordered
  StepOutput logits_;
};

}  // namespace espalier
