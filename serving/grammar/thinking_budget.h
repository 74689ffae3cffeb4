// Limits reasoning to a number of tokens, as vLLM's thinking_token_budget does: then only the
// closing tag may follow, then the answer. As a TokenConstraint it also applies inside token trees.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/grammar/structured_output.h"
#include "serving/sampling/token_constraint.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

class ThinkingBudget : public TokenConstraint {
 public:
  // Allows `tokens` tokens between the tags, and up to three more to finish a UTF-8 character.
  // `inner` constrains the whole answer, reasoning included; null: unconstrained. REQUIRES: both
  // tags are known. Returns the tokenizer's error for the closing tag.
  static absl::StatusOr<std::shared_ptr<ThinkingBudget>> Create(
      ReasoningPrefix reasoning, int tokens, std::shared_ptr<const Tokenizer> tokenizer,
      std::shared_ptr<TokenConstraint> inner);

  StateRef Start() const override { return start_; }
  absl::StatusOr<StateRef> After(const StateRef& position, int token) override;
  absl::StatusOr<TokenBitmaskRef> AllowedTokens(const StateRef& position) override;
  bool MayEnd(const StateRef& position) const override;
  bool Costly() const override { return inner_ != nullptr && inner_->Costly(); }
  bool Complete(const StateRef& position) const override;

 private:
  struct Position;

  ThinkingBudget(ReasoningPrefix reasoning, int tokens, std::shared_ptr<const Tokenizer> tokenizer,
                 std::shared_ptr<TokenConstraint> inner)
      : reasoning_(std::move(reasoning)),
        tokens_(tokens),
        tokenizer_(std::move(tokenizer)),
        inner_(std::move(inner)) {}

  std::string TextOf(int token) const;
  void UpdatePhase(Position& at) const;

  const ReasoningPrefix reasoning_;
  const int tokens_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::shared_ptr<TokenConstraint> inner_;
  std::vector<int> closing_;
  std::vector<TokenBitmaskRef> only_;  // one for each token of closing_
  StateRef start_;
};

}  // namespace espalier
