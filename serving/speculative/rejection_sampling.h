// Stochastic verification of a token tree (speculative sampling, also called rejection sampling):
// the tokens have exactly the LLM's distribution p, whatever the drafters proposed.
//
// The algorithm is traversal verification (Weng et al. 2025, arXiv 2505.12398). On a chain it is
// block verification (Sun et al. 2025, arXiv 2403.10444), which accepts as many tokens as any
// lossless method can. Paths are accepted or rejected as a whole, the deepest nodes first:
// - A node is reached with a probability r: 1 at the root; min(1, r p(x) / q(x)) for a proposal x
//   that was drawn from q below a node that is reached with r.
// - The children of a node are tried first, each with its whole subtree. If one is rejected, p of
//   the parent becomes s = max(0, r p - q), normalized, and r becomes |s| / (|s| + 1 - r).
// - A node without children left is accepted with probability r. The next token is then drawn from
//   its p. If that token is one of its children (this is how proposals of beam search match),
//   verification starts again at that child.
// Multi-step speculative sampling (SpecInfer, section 4.3) is the same for trees of one level; in
// deeper trees it decides token by token, and accepts fewer tokens.
//
// Proposals without replacement follow the same rules with q renormalized without the tokens drawn
// before (Sequoia, section 3.2). The number of draws below a node may depend on the path to the
// node, never on the tokens at or below the draws.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "serving/sampling/distribution.h"
#include "serving/speculative/token_tree.h"
#include "serving/speculative/tree_verification.h"

namespace espalier {

// The random decisions of verification.
class VerificationRng {
 public:
  virtual ~VerificationRng() = default;
  // Returns true with this probability. Called at most once for every node of a tree.
  virtual bool Accept(double probability, int node) = 0;
  // Draws a token below a node of this depth.
  virtual int Draw(const Distribution& distribution, int depth) = 0;
};

// `target(node)` returns p after `node`; it is called at most once per node, and only for nodes
// that can be accepted.
absl::StatusOr<Verification> VerifySampled(
    const TokenTree& tree, const std::function<absl::StatusOr<Distribution>(int)>& target,
    VerificationRng& rng);

// Counter-based random numbers (sampling/counter_rng.h) of the request with this seed, whose last
// token, the root, is at `root_position`.
class RequestRng : public VerificationRng {
 public:
  RequestRng(uint64_t seed, int root_position) : seed_(seed), root_position_(root_position) {}
  bool Accept(double probability, int node) override;
  int Draw(const Distribution& distribution, int depth) override;

 private:
  uint64_t seed_;
  int root_position_;
};

}  // namespace espalier
