// The tree of draft tokens that one verification step checks. Node 0 is the root: the last token of
// the sequence, already decided. Every other node is one token computed once, whoever proposed it;
// the proposals themselves are kept apart, because sampled verification must try every one of them:
// two SSMs that draw the same token share a node, yet the second trial still changes the residual
// distribution.
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
  // What the token was drawn from, independently of the other proposals. Null for a token that was
  // chosen, not drawn (beam search): such proposals only compete by exact match.
  std::shared_ptr<const Distribution> drawn_from;
  // Tokens that could not be drawn any more, because the proposals before it had taken them
  // (sampling without replacement): drawn_from is to be read with these at zero, and renormalised.
  std::vector<int> taken;
};

class TokenTree {
 public:
  explicit TokenTree(int root_token);

  int size() const { return static_cast<int>(nodes_.size()); }  // with the root
  int drafted() const { return size() - 1; }
  // Whether a proposal was drawn from a distribution that is kept with it.
  bool drawn() const;
  // Whether one of this node's was.
  bool drawn(int node) const;
  int token(int node) const { return nodes_[node].token; }
  int parent(int node) const {
    return nodes_[node].parent;
  }  // below the node's own; -1 for the root
  int depth(int node) const { return nodes_[node].depth; }
  absl::Span<const int> children(int node) const { return nodes_[node].children; }
  // The tokens of the nodes from below the root to `node`.
  std::vector<int> PathTo(int node) const;
  // The estimated chance that verification reaches the node: the best of its proposals. 1 for the
  // root, 0 where nobody said.
  double chance(int node) const { return nodes_[node].chance; }
  // In the order in which they were made, which never depends on the tokens.
  absl::Span<const Proposal> proposals(int node) const { return nodes_[node].proposals; }

  // The child of `node` with this token, or -1.
  int Child(int node, int token) const;

  // Adds a proposal of `token` under `parent` and returns the node, which may have been there
  // before. REQUIRES: 0 <= parent < size(); if drawn_from is given, it can yield the token.
  int Propose(int parent, int token, int source,
              std::shared_ptr<const Distribution> drawn_from = nullptr, std::vector<int> taken = {},
              double chance = 0);

  // Adds all proposals of `other` after those that are here. InvalidArgument if the roots differ.
  absl::Status Merge(const TokenTree& other);

  // The tree of the nodes for which `keep` is true, and of those that were drawn, whose parents
  // were, too: whether they are dropped would depend on their tokens, and sampled answers would
  // have another law. REQUIRES: one entry per node; the parents of kept nodes are kept.
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
