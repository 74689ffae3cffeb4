// Keeps an answer within a grammar: which tokens may follow is found by walking the vocabulary's
// tree along the grammar's states, and remembered for each state.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/grammar/automaton.h"
#include "serving/grammar/token_trie.h"
#include "serving/sampling/token_constraint.h"

namespace espalier {

// Several requests may share one, on one thread: they share what it remembers.
class TokenMasker : public TokenConstraint {
 public:
  // `eos` may come where the grammar accepts. If there is none, an answer ends where the grammar
  // leaves nothing to follow.
  static absl::StatusOr<std::shared_ptr<TokenMasker>> Create(
      std::shared_ptr<const Automaton> automaton, std::shared_ptr<const TokenTrie> trie,
      std::vector<int> eos);

  StateRef Start() const override { return start_; }
  absl::StatusOr<StateRef> After(const StateRef& position, int token) override;
  absl::StatusOr<TokenBitmaskRef> AllowedTokens(const StateRef& position) override;
  bool MayEnd(const StateRef& position) const override;
  bool Costly() const override;
  bool Complete(const StateRef& position) const override;

 private:
  // States and masks of one epoch. When there are too many a new epoch begins; the old one lives
  // while places of it do.
  struct CacheEpoch;
  struct Position;

  TokenMasker(std::shared_ptr<const Automaton> automaton, std::shared_ptr<const TokenTrie> trie,
              std::vector<int> eos)
      : automaton_(std::move(automaton)), trie_(std::move(trie)), eos_(std::move(eos)) {}

  // The position in the current epoch.
  absl::StatusOr<std::shared_ptr<const Position>> ToCurrentEpoch(const StateRef& position);
  absl::StatusOr<TokenBitmaskRef> ComputeMask(CacheEpoch& epoch, int state);
  // `base`, unless null, has been found before for a state that agrees with this one on all texts
  // of up to `agreed` bytes.
  absl::StatusOr<TokenBitmask> WalkTrie(CacheEpoch& epoch, int state, const TokenBitmask* base, int agreed);

  std::shared_ptr<const Automaton> automaton_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<int> eos_;
  std::shared_ptr<CacheEpoch> epoch_;
  StateRef start_;
  double work_ = 0;  // of a mask, of late; of one that was remembered none
};

}  // namespace espalier
