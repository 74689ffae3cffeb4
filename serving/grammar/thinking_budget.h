// Ends reasoning that have become too long: after so many tokens nothing may come but the mark that
// closes them, and then the answer. What vLLM calls thinking_token_budget. As a constraint it holds
// within token trees, too.
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
  // Of at most `tokens` tokens between the marks, and those that end a character then begun (three
  // at most). `inner`: what the answer must be besides, reasoning included; null: anything.
  // REQUIRES: both marks are known. Errors are the tokenizer's, of the mark that closes.
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
  std::vector<TokenBitmaskRef> only_;  // each of these
  StateRef start_;
};

}  // namespace espalier
