// Verification of a token tree: from the LLM's logits at its nodes to the tokens of the answer.
// VerifyGreedy is below; VerifySampled, which keeps the LLM's distribution, is in
// rejection_sampling.h.
//
// Both return the accepted path and one token more, so every step yields at least one token. If the
// LLM gives no token at an accepted node (its logits are NaN, or all tokens are masked), the path
// ends before that node, whose token is then the one more. At the root, the error is returned.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "serving/speculative/token_tree.h"

namespace espalier {

struct Verification {
  std::vector<int> path;    // accepted nodes, from depth 1 on
  std::vector<int> tokens;  // of these nodes, then the token that follows the last of them
};

// Walks down from the root while the LLM's most probable token is a child. `choice(node)` returns
// the LLM's greedy token after `node`; it is called for nodes on the accepted path only.
absl::StatusOr<Verification> VerifyGreedy(const TokenTree& tree,
                                          const std::function<absl::StatusOr<int>(int)>& choice);

// For verifiers: the result if the LLM fails with `status` at the last accepted node. That node
// leaves the path but its token stays; the next step starts there and returns the error, as
// incremental decoding would. Returns `status` if the node is the root.
absl::StatusOr<Verification> WithoutLastNode(const absl::Status& status, Verification out);

}  // namespace espalier
