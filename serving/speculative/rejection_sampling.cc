#include "serving/speculative/rejection_sampling.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "serving/sampling/counter_rng.h"

namespace espalier {
namespace {

// The distribution of a proposal: q without the tokens drawn before it, renormalized.
class ProposalDistribution {
 public:
  explicit ProposalDistribution(const Proposal& proposal)
      : q_(*proposal.drawn_from), taken_(proposal.taken) {
    double gone = 0;
    for (const int token : taken_) gone += q_[token];
    scale_ = taken_.empty() ? 1 : 1 / (1 - gone);
  }

  double operator[](int token) const { return q_[token] * scale_; }

  // Replaces p by the residual distribution after the proposal and its subtree were rejected, and
  // updates the probability `chance` that the node is reached. With exact arithmetic, the residual
  // is not empty if chance is 1; if rounding makes it empty, p and q are equal up to rounding, and
  // p stays.
  void TakeFrom(Distribution& p, double& chance) const {
    Distribution left(p.size());
    for (size_t i = 0; i < p.size(); ++i) left[i] = std::max(0.0, chance * p[i] - q_[i] * scale_);
    for (const int token : taken_) left[token] = chance * p[token];
    double mass = 0;
    for (const double value : left) mass += value;
    if (mass > 0) {
      for (size_t i = 0; i < p.size(); ++i) p[i] = left[i] / mass;
      chance = mass / (mass + (1 - chance));
    } else if (chance < 1) {
      chance = 0;
    }
  }

 private:
  const Distribution& q_;
  const std::vector<int>& taken_;
  double scale_;
};

class TraversalVerifier {
 public:
  TraversalVerifier(const TokenTree& tree,
                    const std::function<absl::StatusOr<Distribution>(int)>& target,
                    VerificationRng& rng)
      : tree_(tree), target_(target), rng_(rng) {}

  // Returns the accepted node at or below `node`, which is reached with this probability; -1 if
  // none.
  int Visit(int node, double chance) {
    absl::StatusOr<Distribution> p = target_(node);
    if (!p.ok()) {  // an error only if the node is accepted
      if (!rng_.Accept(chance, node)) return -1;
      status_ = p.status();
      return node;
    }
    for (const Proposal& proposal : tree_.proposals(node)) {
      if (proposal.drawn_from == nullptr) continue;
      const ProposalDistribution q(proposal);
      const int token = tree_.token(proposal.node);
      if (const double reached = std::min(1.0, chance * (*p)[token] / q[token]); reached > 0) {
        const int end = Visit(proposal.node, reached);
        if (end >= 0) return end;
      }
      q.TakeFrom(*p, chance);
    }
    if (!rng_.Accept(chance, node)) return -1;
    left_ = *std::move(p);
    return node;
  }

  // Of the accepted node: the distribution of the next token, or why there is none.
  const Distribution& left() const { return left_; }
  const absl::Status& status() const { return status_; }

 private:
  const TokenTree& tree_;
  const std::function<absl::StatusOr<Distribution>(int)>& target_;
  VerificationRng& rng_;
  Distribution left_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<Verification> VerifySampled(
    const TokenTree& tree, const std::function<absl::StatusOr<Distribution>(int)>& target,
    VerificationRng& rng) {
  Verification out;
  TraversalVerifier traversal(tree, target, rng);
  for (int start = 0; start >= 0;) {
    const int end = traversal.Visit(start, 1);
    const auto before = static_cast<int64_t>(out.path.size());
    for (int node = end; node != start; node = tree.parent(node)) {
      out.path.insert(out.path.begin() + before, node);
      out.tokens.insert(out.tokens.begin() + before, tree.token(node));
    }
    if (!traversal.status().ok()) return WithoutLastNode(traversal.status(), std::move(out));
    out.tokens.push_back(rng.Draw(traversal.left(), tree.depth(end)));
    start = tree.Child(end, out.tokens.back());
    if (start >= 0) out.path.push_back(start);
  }
  return out;
}

bool RequestRng::Accept(double probability, int node) {
  return RequestUniform(seed_, RngStream::kAcceptance, 0, root_position_, node) < probability;
}

int RequestRng::Draw(const Distribution& distribution, int depth) {
  return SampleFrom(distribution, ResidualUniform(seed_, root_position_ + depth + 1));
}

}  // namespace espalier
