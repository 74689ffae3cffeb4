// From the LLM's logits on every node of a token tree to the tokens of the answer. Both ways yield
// the accepted path and one token more, so a step always yields at least one. Where that one cannot
// be had (an error of `choice` or `target` at an accepted node), the path is shorter by its last
// node: its token is the one more. At the root the error is returned.
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

// The chance that sampled verification takes.
class VerificationRng {
 public:
  virtual ~VerificationRng() = default;
  // True with this probability. Asked at most once of every node of a tree.
  virtual bool Accept(double probability, int node) = 0;
  // `depth` is that of the node below which a token is drawn.
  virtual int Draw(const Distribution& distribution, int depth) = 0;
};

// Traversal verification (Weng et al. 2025, arXiv 2505.12398), which on a chain is block
// verification (Sun et al. 2025, arXiv 2403.10444): the tokens have exactly the LLM's distribution
// p, whatever was proposed, and of a chain as many are accepted as any such way can. Paths are
// judged whole, the deepest nodes first. A node is reached with a chance: 1 at the root, and of a
// drawn proposal (x, q) min(1, chance p(x) / q(x)) with its parent's chance. Its children have the
// first word, each with all below it. Where one fails, the parent's p becomes r = max(0, chance p -
// q), normalised, and its chance |r| / (|r| + 1 - chance). A node without children left is accepted
// with its chance, and then the next token is drawn from its p; if that token happens to be a child
// (which is how chosen proposals are matched), all begins anew there. Multi-step speculative
// sampling (SpecInfer, section 4.3) is the same where nothing is deeper than one level; it decides
// token by token, so what a path won before is lost to what comes after. `target(node)` is p after
// that node; it is asked for each node that could be accepted, at most once. Proposals without
// replacement are the same law with their own q: each was drawn from q without the tokens before
// it, renormalised (Sequoia, section 3.2). How many draws a node has may depend on the path to it,
// never on what is at or below them.
absl::StatusOr<Verification> VerifySampled(
    const TokenTree& tree, const std::function<absl::StatusOr<Distribution>(int)>& target,
    VerificationRng& noise);

// Noise by counter (sampling/noise.h) for the request with this seed; the root has this position.
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
