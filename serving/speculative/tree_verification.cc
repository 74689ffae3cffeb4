#include "serving/speculative/tree_verification.h"

#include <utility>

namespace espalier {

absl::StatusOr<Verification> WithoutLastNode(const absl::Status& status, Verification out) {
  if (out.path.empty()) return status;
  out.path.pop_back();
  return out;
}

absl::StatusOr<Verification> VerifyGreedy(const TokenTree& tree,
                                          const std::function<absl::StatusOr<int>(int)>& choice) {
  Verification out;
  for (int node = 0; node >= 0;) {
    const absl::StatusOr<int> token = choice(node);
    if (!token.ok()) return WithoutLastNode(token.status(), std::move(out));
    out.tokens.push_back(*token);
    node = tree.Child(node, *token);
    if (node >= 0) out.path.push_back(node);
  }
  return out;
}

}  // namespace espalier
