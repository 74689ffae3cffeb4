// Drafting by one SSM, batched over requests, with the bookkeeping of the SSM's own KV cache. That
// cache holds a beginning of each request's tokens; before a draft it follows up to the last token,
// which is the root of the tree. After verification the nodes on the accepted path whose K and V
// the SSM has are kept; what it lacks (levels it never ran, tokens another SSM proposed) is
// computed by the next follow.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "serving/engine/model_runner.h"
#include "serving/engine/row_packer.h"
#include "serving/kv/kv_cache.h"
#include "serving/sampling/distribution.h"
#include "serving/speculative/expansion.h"
#include "serving/speculative/token_tree.h"

namespace espalier {

class Drafter {
 public:
  struct Job {
    int64_t request = 0;
    absl::Span<const int> tokens;  // of the request; the last one is the root if depth > 0
    int follow = 0;                // run the SSM over tokens[0, follow); all of them if depth > 0
    int depth = 0;                 // levels to draft; 0: only follow
    int max_nodes = 0;             // greedy drafts stop there; sampled ones are never cut
    SamplingParameters sampling;   // greedy: beam search; otherwise independent draws
    TokenTree* tree = nullptr;     // the draft is merged into it, if depth > 0
  };

  // `source` tells this SSM from others in proposals and noise. `runner` must outlive the drafter.
  Drafter(ModelRunner& runner, int source, Expansion expansion);

  // Runs all jobs, level by level. If an error comes back, the SSM's state of the jobs' requests is
  // as it was before.
  absl::Status Draft(absl::Span<const Job> jobs);

  // After verification: `accepted` are the tokens of the accepted path below the root of the last
  // draft.
  absl::Status Commit(int64_t request, absl::Span<const int> accepted);

  // Forgets the request.
  void Release(int64_t request);

  const KvCache& kv() const { return kv_; }
  int64_t batches() const { return batches_; }

 private:
  struct Node {
    int slot = -1;  // where the SSM has its K and V; -1: not run
    double log_probability = 0;
    std::vector<int32_t> path;  // slots from depth 1 to the node
  };
  struct Branches {
    TokenTree tree{0};
    std::vector<Node> nodes;
    std::vector<int> frontier;               // nodes of the deepest level
    std::vector<std::vector<float>> logits;  // of the frontier
  };

  absl::Status Follow(absl::Span<const Job> jobs);
  absl::Status RunFrontiers(absl::Span<const Job* const> jobs);
  absl::Status Expand(const Job& job, int depth);
  void ExpandByBeam(int width, Branches& draft);
  absl::Status ExpandByDraws(const Job& job, int depth, Branches& draft);

  ModelRunner& runner_;
  int source_;
  Expansion expansion_;
  KvCache kv_;
  absl::flat_hash_map<int64_t, Branches> drafts_;
  int64_t batches_ = 0;
};

}  // namespace espalier
