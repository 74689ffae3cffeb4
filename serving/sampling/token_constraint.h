// Constrained decoding: which tokens may come next under a grammar, a JSON schema or a list of
// choices (structured output). Sampling uses only this interface; serving/grammar implements it.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "serving/sampling/logit_edits.h"

namespace espalier {

// One thread at a time.
class TokenConstraint {
 public:
  // Progress of an output through the constraint. Immutable; shared by the nodes of token trees.
  class State {
   public:
    virtual ~State() = default;
  };
  using StateRef = std::shared_ptr<const State>;

  virtual ~TokenConstraint() = default;

  virtual StateRef Start() const = 0;
  // Returns the state after `token`. Returns InvalidArgument if the token is not allowed, or
  // computing the state exceeds a limit.
  virtual absl::StatusOr<StateRef> After(const StateRef& state, int token) = 0;
  // Returns the allowed next tokens; null: all. An end-of-sequence token is allowed where the
  // output may end. Returns InvalidArgument if no token is allowed, or computing the mask exceeds a
  // limit.
  virtual absl::StatusOr<TokenBitmaskRef> AllowedTokens(const StateRef& state) = 0;
  // True if an end-of-sequence token is allowed.
  virtual bool MayEnd(const StateRef& state) const = 0;
  // True if masks have been slow recently. Callers should then request no masks for tree nodes,
  // because all requests of the batch wait for them.
  virtual bool Costly() const { return false; }
  // True if the output is complete and no token can follow.
  virtual bool Complete(const StateRef& state) const = 0;
};

}  // namespace espalier
