#include "serving/grammar/thinking_budget.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr int kMaxContinuationBytes = 3;  // continuation bytes of a UTF-8 character

// Whether a text ends inside a UTF-8 character.
bool EndsInsideCharacter(absl::string_view text) {
  for (size_t behind = 0; behind < kMaxContinuationBytes && behind < text.size(); ++behind) {
    const auto byte = static_cast<uint8_t>(text[text.size() - 1 - behind]);
    if (byte < 0x80) return false;
    if (byte < 0xC0) continue;
    const size_t more = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    return behind < more;
  }
  return false;
}

}  // namespace

struct ThinkingBudget::Position : public TokenConstraint::State {
  enum Phase { kBefore, kInside, kClosing, kAfter };

  Phase phase = kBefore;
  int tokens = 0;      // of the reasoning
  std::string text;    // kBefore: everything so far; kInside: the end that may still matter
  size_t closing = 0;  // tokens of the closing tag so far
  StateRef inner;
};

absl::StatusOr<std::shared_ptr<ThinkingBudget>> ThinkingBudget::Create(
    ReasoningPrefix reasoning, int tokens, std::shared_ptr<const Tokenizer> tokenizer,
    std::shared_ptr<TokenConstraint> inner) {
  std::shared_ptr<ThinkingBudget> budget(
      new ThinkingBudget(std::move(reasoning), tokens, std::move(tokenizer), std::move(inner)));
  const std::string& close = budget->reasoning_.close;
  if (const int token = budget->tokenizer_->TokenId(close); token >= 0) {
    budget->closing_ = {token};
  } else {
    absl::StatusOr<std::vector<int>> encoded = budget->tokenizer_->TryEncode(close, {});
    if (!encoded.ok()) return encoded.status();
    budget->closing_ = *std::move(encoded);
  }
  for (const int token : budget->closing_) {
    TokenBitmask only;
    Insert(token, &only);
    budget->only_.push_back(std::make_shared<const TokenBitmask>(std::move(only)));
  }
  auto start = std::make_shared<Position>();
  if (budget->inner_ != nullptr) start->inner = budget->inner_->Start();
  if (budget->reasoning_.in_prompt) {
    start->phase = Position::kInside;
    budget->UpdatePhase(*start);
  }
  budget->start_ = std::move(start);
  return budget;
}

// Special tokens have no text, except for the tags.
std::string ThinkingBudget::TextOf(int token) const {
  std::string text = tokenizer_->TokenBytes(token);
  const bool mark = text == reasoning_.open || text == reasoning_.close;
  return mark || !tokenizer_->IsSpecial(token) ? text : "";
}

// Advances the phase according to the text and the number of tokens.
void ThinkingBudget::UpdatePhase(Position& at) const {
  if (at.phase == Position::kBefore) {
    const absl::string_view begun = absl::StripLeadingAsciiWhitespace(at.text);
    if (absl::StartsWith(begun, reasoning_.open)) {
      at.phase = Position::kInside;
      at.text = std::string(begun.substr(reasoning_.open.size()));
    } else if (!absl::StartsWith(reasoning_.open, begun)) {
      at.phase = Position::kAfter;
    }
  }
  if (at.phase == Position::kInside && absl::StrContains(at.text, reasoning_.close)) {
    at.phase = Position::kAfter;
  }
  if (at.phase != Position::kInside) {
    if (at.phase == Position::kAfter) at.text.clear();
    return;
  }
  const size_t kept = std::max<size_t>(reasoning_.close.size() - 1, kMaxContinuationBytes);
  if (at.text.size() > kept) at.text.erase(0, at.text.size() - kept);
  const int beyond = at.tokens - tokens_;
  const bool over =
      beyond >= kMaxContinuationBytes || (beyond >= 0 && !EndsInsideCharacter(at.text));
  if (over) at.phase = Position::kClosing;
}

absl::StatusOr<TokenConstraint::StateRef> ThinkingBudget::After(const StateRef& position,
                                                                int token) {
  const auto& before = static_cast<const Position&>(*position);
  if (before.phase == Position::kClosing && token != closing_[before.closing]) {
    return absl::InvalidArgumentError(absl::StrCat(
        "token ", token, " does not close the reasoning, which has reached its limit"));
  }
  StateRef inner;
  if (inner_ != nullptr) {
    absl::StatusOr<StateRef> next = inner_->After(before.inner, token);
    if (!next.ok()) return next.status();
    inner = *std::move(next);
  }
  if (before.phase == Position::kAfter && inner_ == nullptr) return position;
  auto after = std::make_shared<Position>(before);
  after->inner = std::move(inner);
  switch (before.phase) {
    case Position::kBefore:
    case Position::kInside:
      if (before.phase == Position::kInside) ++after->tokens;
      after->text += TextOf(token);
      UpdatePhase(*after);
      break;
    case Position::kClosing:
      if (++after->closing == closing_.size()) after->phase = Position::kAfter;
      break;
    case Position::kAfter:
      break;
  }
  return after;
}

absl::StatusOr<TokenBitmaskRef> ThinkingBudget::AllowedTokens(const StateRef& position) {
  const auto& at = static_cast<const Position&>(*position);
  if (at.phase == Position::kClosing) return only_[at.closing];
  if (inner_ != nullptr) return inner_->AllowedTokens(at.inner);
  return TokenBitmaskRef();
}

bool ThinkingBudget::MayEnd(const StateRef& position) const {
  const auto& at = static_cast<const Position&>(*position);
  return at.phase != Position::kClosing && (inner_ == nullptr || inner_->MayEnd(at.inner));
}

bool ThinkingBudget::Complete(const StateRef& position) const {
  return inner_ != nullptr && inner_->Complete(static_cast<const Position&>(*position).inner);
}

}  // namespace espalier
