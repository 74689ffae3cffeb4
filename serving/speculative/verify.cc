#include "serving/speculative/verify.h"

#include <algorithm>

#include "serving/sampling/noise.h"

namespace espalier {
namespace {

// What a proposal was drawn from: q, but for the tokens that were taken before it.
class DrawnFrom {
 public:
  explicit DrawnFrom(const Proposal& proposal) : q_(*proposal.drawn_from), taken_(proposal.taken) {
    double gone = 0;
    for (const int token : taken_) gone += q_[token];
    scale_ = taken_.empty() ? 1 : 1 / (1 - gone);
  }

  double operator[](int token) const { return q_[token] * scale_; }

  // p <- normalise(max(0, p - q)). In exact arithmetic something is left whenever a proposal from q
  // was rejected; if rounding leaves nothing, p and q are equal but for rounding, and p stays.
  void TakeFrom(Distribution& p) const {
    Distribution left(p.size());
    for (size_t i = 0; i < p.size(); ++i) left[i] = std::max(0.0, p[i] - q_[i] * scale_);
    for (const int token : taken_) left[token] = p[token];
    double mass = 0;
    for (const double value : left) mass += value;
    if (!(mass > 0)) return;
    for (size_t i = 0; i < p.size(); ++i) p[i] = left[i] / mass;
  }

 private:
  const Distribution& q_;
  const std::vector<int>& taken_;
  double scale_;
};

// The accepted child of `node`, or -1; `p` is then what is left of the target.
int TryProposals(const TokenTree& tree, int node, Distribution& p, VerificationNoise& noise) {
  int trial = 0;
  for (const Proposal& proposal : tree.proposals(node)) {
    if (proposal.drawn_from == nullptr) continue;
    const DrawnFrom q(proposal);
    const int token = tree.token(proposal.node);
    const double probability = std::min(1.0, p[token] / q[token]);
    if (noise.Accept(probability, tree.depth(node), trial++)) return proposal.node;
    q.TakeFrom(p);
  }
  return -1;
}

}  // namespace

absl::StatusOr<Verification> VerifyGreedy(const TokenTree& tree,
                                          const std::function<absl::StatusOr<int>(int)>& choice) {
  Verification out;
  for (int node = 0; node >= 0;) {
    const absl::StatusOr<int> token = choice(node);
    if (!token.ok()) return token.status();
    out.tokens.push_back(*token);
    node = tree.Child(node, *token);
    if (node >= 0) out.path.push_back(node);
  }
  return out;
}

absl::StatusOr<Verification> VerifySampled(
    const TokenTree& tree, const std::function<absl::StatusOr<Distribution>(int)>& target,
    VerificationNoise& noise) {
  Verification out;
  for (int node = 0; node >= 0;) {
    absl::StatusOr<Distribution> p = target(node);
    if (!p.ok()) return p.status();
    int next = TryProposals(tree, node, *p, noise);
    int token;
    if (next >= 0) {
      token = tree.token(next);
    } else {
      token = noise.Draw(*p, tree.depth(node));
      next = tree.Child(node, token);
    }
    out.tokens.push_back(token);
    node = next;
    if (node >= 0) out.path.push_back(node);
  }
  return out;
}

bool RequestNoise::Accept(double probability, int depth, int proposal) {
  return RequestUniform(seed_, NoiseStream::kAcceptance, 0, root_position_ + depth + 1, proposal) <
         probability;
}

int RequestNoise::Draw(const Distribution& distribution, int depth) {
  return SampleFrom(distribution, ResidualUniform(seed_, root_position_ + depth + 1));
}

}  // namespace espalier
