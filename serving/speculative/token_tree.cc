#include "serving/speculative/token_tree.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {

TokenTree::TokenTree(int root_token) {
  nodes_.push_back({.token = root_token, .parent = -1, .depth = 0, .chance = 1});
}

std::vector<int> TokenTree::PathTo(int node) const {
  std::vector<int> path(depth(node));
  for (; node > 0; node = parent(node)) path[depth(node) - 1] = token(node);
  return path;
}

int TokenTree::Child(int node, int token) const {
  for (const int child : nodes_[node].children) {
    if (nodes_[child].token == token) return child;
  }
  return -1;
}

int TokenTree::Propose(int parent, int token, int source,
                       std::shared_ptr<const Distribution> drawn_from, std::vector<int> taken,
                       double chance) {
  int node = Child(parent, token);
  if (node < 0) {
    node = size();
    const int depth = nodes_[parent].depth + 1;
    nodes_.push_back({.token = token, .parent = parent, .depth = depth, .chance = chance});
    nodes_[parent].children.push_back(node);
  }
  nodes_[node].chance = std::max(nodes_[node].chance, chance);
  nodes_[parent].proposals.push_back({.node = node,
                                      .source = source,
                                      .drawn_from = std::move(drawn_from),
                                      .taken = std::move(taken)});
  return node;
}

bool TokenTree::drawn() const {
  for (const Node& node : nodes_) {
    for (const Proposal& proposal : node.proposals) {
      if (proposal.drawn_from != nullptr) return true;
    }
  }
  return false;
}

bool TokenTree::drawn(int node) const {
  if (node == 0) return false;
  return std::any_of(nodes_[parent(node)].proposals.begin(), nodes_[parent(node)].proposals.end(),
                     [&](const Proposal& proposal) {
                       return proposal.node == node && proposal.drawn_from != nullptr;
                     });
}

absl::Status TokenTree::Merge(const TokenTree& other) {
  if (token(0) != other.token(0)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot merge token trees: their roots are ",
                                                   token(0), " and ", other.token(0)));
  }
  std::vector<int> here(other.size(), 0);
  for (int node = 0; node < other.size(); ++node) {
    for (const Proposal& proposal : other.proposals(node)) {
      here[proposal.node] =
          Propose(here[node], other.token(proposal.node), proposal.source, proposal.drawn_from,
                  proposal.taken, other.chance(proposal.node));
    }
  }
  return absl::OkStatus();
}

TokenTree TokenTree::Keep(const std::vector<bool>& keep) const {
  TokenTree out(token(0));
  std::vector<int> there(size(), 0);
  for (int node = 0; node < size(); ++node) {
    if (node > 0 && there[node] == 0) continue;
    for (const Proposal& proposal : proposals(node)) {
      if (!keep[proposal.node] && !drawn(proposal.node)) continue;
      there[proposal.node] =
          out.Propose(there[node], token(proposal.node), proposal.source, proposal.drawn_from,
                      proposal.taken, chance(proposal.node));
    }
  }
  return out;
}

}  // namespace espalier
