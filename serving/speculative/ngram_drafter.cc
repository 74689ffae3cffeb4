#include "serving/speculative/ngram_drafter.h"

#include <algorithm>
#include <utility>

namespace espalier {
namespace {

// An initial estimate, which AcceptanceEstimator corrects: longer matches continue alike more
// often.
double Guess(int length) { return length / (length + 1.5); }

}  // namespace

TokenTree NgramDrafter::Draft(int64_t request, absl::Span<const int> tokens, int depth,
                              int max_nodes, const AcceptanceEstimator* acceptance, double failing,
                              const LogitsProcessor* rules, absl::string_view salt) {
  State& state = requests_[request];
  if (state.salt != salt) state.salt = std::string(salt);
  state.index.Append(tokens.subspan(static_cast<size_t>(state.index.size())));
  state.tree = TokenTree(tokens.back());
  state.probabilities.assign(1, 1);
  depth = std::min(depth, options_.depth);
  // The request's own text first: it predicts its continuation best.
  int branches = options_.branches;
  const NgramIndex::Runs runs(tokens);
  const auto [newer, older] = history_.Of(salt);
  const bool ruled = rules != nullptr && rules->active();
  for (const NgramIndex* index : {static_cast<const NgramIndex*>(&state.index), newer, older}) {
    if (index == nullptr) continue;
    for (const NgramIndex::Match& match : index->Find(runs, branches)) {
      --branches;
      int node = 0;
      for (int i = 0; i < depth && match.next + i < index->size(); ++i) {
        const int token = index->token(match.next + i);
        if (token == NgramIndex::kEnd) break;
        if (state.tree.Child(node, token) < 0) {
          if (state.tree.drafted() >= max_nodes) break;
          if (ruled && !rules->Allows(state.tree.PathTo(node), token)) break;
          const double guess = Guess(match.length + i);
          const int rank = static_cast<int>(state.tree.children(node).size());
          const double worth =
              acceptance != nullptr ? acceptance->OfProbability(guess, i + 1, rank) : guess;
          // Siblings share the probability mass.
          double left = 1;
          for (const int sibling : state.tree.children(node)) {
            left -= state.tree.chance(sibling) / state.tree.chance(node);
          }
          const double share = std::min(
              {ScaleFailureOdds(worth, failing), std::max(left, 0.0), AcceptanceEstimator::kMost});
          state.tree.Propose(node, token, kSource, nullptr, {}, state.tree.chance(node) * share);
          state.probabilities.push_back(guess);
        }
        node = state.tree.Child(node, token);
      }
    }
  }
  return state.tree;
}

std::vector<DraftTrial> NgramDrafter::Commit(int64_t request, absl::Span<const int> accepted,
                                             int next) {
  std::vector<DraftTrial> trials;
  const auto it = requests_.find(request);
  if (it == requests_.end()) return trials;
  const TokenTree& tree = it->second.tree;
  for (int node = 0, i = 0; i <= static_cast<int>(accepted.size()) && node >= 0; ++i) {
    const int token = i < static_cast<int>(accepted.size()) ? accepted[i] : next;
    int rank = 0;
    for (const int child : tree.children(node)) {
      trials.push_back({.depth = i + 1,
                        .rank = rank++,
                        .probability = it->second.probabilities[child],
                        .accepted = tree.token(child) == token});
    }
    node = tree.Child(node, token);
  }
  it->second.tree = TokenTree(0);
  return trials;
}

void NgramDrafter::Release(int64_t request, absl::Span<const int> tokens, int prompt) {
  const auto it = requests_.find(request);
  if (it == requests_.end()) return;
  const std::string salt = std::move(it->second.salt);
  requests_.erase(it);
  history_.Remember(salt, tokens.subspan(prompt));
}

}  // namespace espalier
