// The token tree that one verification step checks. Node 0 is the root: the last token of the
// sequence, already accepted. Every other node is one token that the LLM computes once, even if
// several drafters proposed it. Proposals are kept separately, because sampled verification must
// try each of them: if two SSMs draw the same token, they share a node, but the second proposal
// still changes the residual distribution.
#pragma once

#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "serving/sampling/distribution.h"

namespace espalier {

struct Proposal {
  int node = 0;    // the child proposed
  int source = 0;  // which SSM
  // The distribution that the token was drawn from, independently of the other proposals. Null for
  // a token that was chosen (beam search, n-gram): it is accepted by exact match only.
  std::shared_ptr<const Distribution> drawn_from;
  // Sampling without replacement: tokens drawn before, whose probability in drawn_from counts as
  // zero; the rest is renormalized.
  std::vector<int> taken;
};

class TokenTree {
 public:
  explicit TokenTree(int root_token);

  int size() const { return static_cast<int>(nodes_.size()); }  // with the root
  int drafted() const { return size() - 1; }
  // True if any proposal has a distribution.
  bool drawn() const;
  // True if any proposal below this node has a distribution.
  bool drawn(int node) const;
  int token(int node) const { return nodes_[node].token; }
  // Less than `node`; -1 for the root.
  int parent(int node) const { return nodes_[node].parent; }
  int depth(int node) const { return nodes_[node].depth; }
  absl::Span<const int> children(int node) const { return nodes_[node].children; }
  // Tokens from below the root to `node`.
  std::vector<int> PathTo(int node) const;
  // Estimated probability that verification accepts the node: the best of its proposals. 1 for the
  // root, 0 if unknown.
  double chance(int node) const { return nodes_[node].chance; }
  // In the order of Propose, which never depends on the tokens.
  absl::Span<const Proposal> proposals(int node) const { return nodes_[node].proposals; }

  // Returns the child of `node` with this token, or -1.
  int Child(int node, int token) const;

  // Adds a proposal of `token` below `parent`. Returns its node, new or existing. REQUIRES: 0 <=
  // parent < size(); drawn_from, if given, gives the token a positive probability.
  int Propose(int parent, int token, int source,
              std::shared_ptr<const Distribution> drawn_from = nullptr, std::vector<int> taken = {},
              double chance = 0);

  // Adds the proposals of `other` after the present ones. Returns InvalidArgument if the roots
  // differ.
  absl::Status Merge(const TokenTree& other);

  // Returns the tree of the nodes with `keep`, and of all drawn nodes below kept parents: dropping
  // draws by their tokens would change the distribution of sampled outputs. REQUIRES: one entry per
  // node; parents of kept nodes are kept.
  TokenTree Keep(const std::vector<bool>& keep) const;

 private:
  struct Node {
    int token;
    int parent;
    int depth;
    double chance;
    absl::InlinedVector<int, 4> children;
    absl::InlinedVector<Proposal, 1> proposals;
  };

  std::vector<Node> nodes_;  // parents before children
};

}  // namespace espalier
