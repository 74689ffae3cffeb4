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
  class Place {
   public:
    virtual ~Place() = default;
  };
  using PlaceRef = std::shared_ptr<const Place>;

  virtual ~TokenConstraint() = default;

  virtual PlaceRef Start() const = 0;
  // InvalidArgument if the token may not come there, or if following it costs too much.
  virtual absl::StatusOr<PlaceRef> After(const PlaceRef& place, int token) = 0;
  // The tokens that may come; null: any. An end-of-sequence token may come where the answer may
  // end. InvalidArgument if that leaves no token, or costs too much.
  virtual absl::StatusOr<TokenSetRef> Permitted(const PlaceRef& place) = 0;
  // Whether an end-of-sequence token may come there.
  virtual bool MayEnd(const PlaceRef& place) const = 0;
  // What may come has cost so much of late that nobody should ask for places ahead of the answer:
  // all requests wait meanwhile.
  virtual bool Costly() const { return false; }
  // The answer is whole and nothing can follow.
  virtual bool Complete(const PlaceRef& place) const = 0;
};

}  // namespace espalier
