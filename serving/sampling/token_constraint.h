// What an answer may be, token by token: a grammar, a schema, a list of choices. Sampling knows
// this interface alone; serving/grammar implements it.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "serving/sampling/logit_edits.h"

namespace espalier {

// One thread at a time.
class TokenConstraint {
 public:
  // How far an answer has come; immutable. Shared among the nodes of token trees.
  class State {
   public:
    virtual ~State() = default;
  };
  using StateRef = std::shared_ptr<const State>;

  virtual ~TokenConstraint() = default;

  virtual StateRef Start() const = 0;
  // InvalidArgument if the token may not come there, or if following it costs too much.
  virtual absl::StatusOr<StateRef> After(const StateRef& state, int token) = 0;
  // The tokens that may come; null: any. An end-of-sequence token may come where the answer may
  // end. InvalidArgument if that leaves no token, or costs too much.
  virtual absl::StatusOr<TokenBitmaskRef> AllowedTokens(const StateRef& state) = 0;
  // Whether an end-of-sequence token may come there.
  virtual bool MayEnd(const StateRef& state) const = 0;
  // What may come has cost so much of late that nobody should ask for places ahead of the answer:
  // all requests wait meanwhile.
  virtual bool Costly() const { return false; }
  // The answer is whole and nothing can follow.
  virtual bool Complete(const StateRef& state) const = 0;
};

}  // namespace espalier
