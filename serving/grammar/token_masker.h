// Computes which tokens may follow under a grammar, by walking the vocabulary's trie along the
// grammar's states. Masks are cached by state.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/grammar/automaton.h"
#include "serving/grammar/token_trie.h"
#include "serving/sampling/token_constraint.h"

namespace espalier {

// Requests may share one, and with it the cache, on one thread.
class TokenMasker : public TokenConstraint {
 public:
  // `eos` tokens are allowed where the grammar accepts. If there are none, an answer ends where
  // nothing can follow.
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
  // States and masks of one epoch of the cache. A new epoch begins when the cache is full; the old
  // one lives as long as a position refers to it.
  struct CacheEpoch;
  struct Position;

  TokenMasker(std::shared_ptr<const Automaton> automaton, std::shared_ptr<const TokenTrie> trie,
              std::vector<int> eos)
      : automaton_(std::move(automaton)), trie_(std::move(trie)), eos_(std::move(eos)) {}

  // Returns the position in the current epoch.
  absl::StatusOr<std::shared_ptr<const Position>> ToCurrentEpoch(const StateRef& position);
  absl::StatusOr<TokenBitmaskRef> ComputeMask(CacheEpoch& epoch, int state);
  // Computes the mask of `state`. `base`, if not null, is the mask of a state that accepts the same
  // continuations of up to `agreed` bytes.
  absl::StatusOr<TokenBitmask> WalkTrie(CacheEpoch& epoch, int state, const TokenBitmask* base,
                                        int agreed);

  std::shared_ptr<const Automaton> automaton_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<int> eos_;
  std::shared_ptr<CacheEpoch> epoch_;
  StateRef start_;
  double work_ = 0;  // moving average per mask; a cached mask costs nothing
};

}  // namespace espalier
