// From the LLM's logits on every node of a token tree to the tokens of the answer. Both ways yield
// the accepted path and one token more, so a step always yields at least one.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/sampling/distribution.h"
#include "serving/speculative/token_tree.h"

namespace espalier {

struct Verification {
  std::vector<int> path;    // accepted nodes, from depth 1 on
  std::vector<int> tokens;  // theirs, and the one that follows the last of them
};

// Walks down while the most probable token is a child. `choice(node)` is the LLM's greedy token
// after that node; it is asked only for nodes on the path.
absl::StatusOr<Verification> VerifyGreedy(const TokenTree& tree,
                                          const std::function<absl::StatusOr<int>(int)>& choice);

// The chance that sampled verification takes. `depth` is the depth of the node below which a token
// is being decided.
class VerificationNoise {
 public:
  virtual ~VerificationNoise() = default;
  // True with this probability; `proposal` counts the trials at one node.
  virtual bool Accept(double probability, int depth, int proposal) = 0;
  virtual int Draw(const Distribution& distribution, int depth) = 0;
};

// Multi-step speculative sampling (SpecInfer, section 4.3): the tokens have exactly the LLM's
// distribution p, whatever was proposed. At each node, for every drawn proposal (x, q) in order:
// accept with probability min(1, p(x) / q(x)), otherwise p becomes max(0, p - q), normalised. If
// none is accepted, draw from what is left of p; if that token happens to be a child (which is how
// chosen proposals are matched), the walk goes on there. `target(node)` is p after that node; it is
// asked only for nodes on the path. Proposals without replacement are the same law with their own
// q: each was drawn from q without the tokens before it, renormalised (Sequoia, section 3.2).
absl::StatusOr<Verification> VerifySampled(
    const TokenTree& tree, const std::function<absl::StatusOr<Distribution>(int)>& target,
    VerificationNoise& noise);

// Noise by counter (sampling/noise.h) for the request with this seed; the root has this position.
class RequestNoise : public VerificationNoise {
 public:
  RequestNoise(uint64_t seed, int root_position) : seed_(seed), root_position_(root_position) {}
  bool Accept(double probability, int depth, int proposal) override;
  int Draw(const Distribution& distribution, int depth) override;

 private:
  uint64_t seed_;
  int root_position_;
};

}  // namespace espalier
