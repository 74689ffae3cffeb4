#include "serving/sampling/logits_processor.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

absl::Status OutOfVocabulary(absl::string_view field, int token, int vocabulary) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " names token ", token, ", the vocabulary has ", vocabulary));
}

absl::Status CheckRange(absl::string_view field, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", expected ", low, " to ", high));
}

// Each different token of a path, with how often it comes.
std::vector<std::pair<int, int>> Counts(absl::Span<const int> path) {
  std::vector<std::pair<int, int>> out;
  for (const int token : path) {
    const auto it = std::find_if(out.begin(), out.end(),
                                 [token](const auto& entry) { return entry.first == token; });
    if (it != out.end()) {
      ++it->second;
    } else {
      out.emplace_back(token, 1);
    }
  }
  return out;
}

}  // namespace

absl::Status ValidateRules(const TokenRules& rules, int vocabulary) {
  absl::Status status = CheckRange("repetition_penalty", rules.repetition_penalty, 0.01, 100);
  status.Update(CheckRange("presence_penalty", rules.presence_penalty, -2, 2));
  status.Update(CheckRange("frequency_penalty", rules.frequency_penalty, -2, 2));
  if (rules.min_tokens < 0) {
    status.Update(absl::InvalidArgumentError(
        absl::StrCat("min_tokens is ", rules.min_tokens, ", expected 0 or more")));
  }
  for (const auto& [token, bias] : rules.logit_bias) {
    if (token < 0 || token >= vocabulary) {
      status.Update(OutOfVocabulary("logit_bias", token, vocabulary));
    }
    status.Update(CheckRange(absl::StrCat("logit_bias of token ", token), bias, -100, 100));
  }
  for (const int token : rules.allowed) {
    if (token < 0 || token >= vocabulary) {
      status.Update(OutOfVocabulary("allowed_token_ids", token, vocabulary));
    }
  }
  for (const std::vector<int>& word : rules.bad_words) {
    if (word.empty()) {
      status.Update(absl::InvalidArgumentError("bad_words has a word without tokens"));
    }
    for (const int token : word) {
      if (token < 0 || token >= vocabulary) {
        status.Update(OutOfVocabulary("bad_words", token, vocabulary));
      }
    }
  }
  return status;
}

RuledAnswer::RuledAnswer(std::shared_ptr<const TokenRules> rules, absl::Span<const int> prompt,
                         std::vector<int> enders)
    : rules_(std::move(rules)), enders_(std::move(enders)) {
  active_ = rules_ != nullptr &&
            (rules_->penalizes() || rules_->min_tokens > 0 || !rules_->logit_bias.empty() ||
             !rules_->allowed.empty() || !rules_->bad_words.empty() || rules_->constraint);
  if (!active_) return;
  if (!rules_->allowed.empty()) {
    TokenSet allowed;
    for (const int token : rules_->allowed) Insert(token, &allowed);
    allowed_ = std::make_shared<const TokenSet>(std::move(allowed));
  }
  for (size_t i = 0; i < rules_->bad_words.size(); ++i) {
    const std::vector<int>& word = rules_->bad_words[i];
    if (word.size() > 1) {
      phrases_.push_back(i);
    } else {
      never_.push_back(word[0]);
    }
  }
  std::sort(never_.begin(), never_.end());
  never_.erase(std::unique(never_.begin(), never_.end()), never_.end());
  if (rules_->repetition_penalty != 1) {
    for (const int token : prompt) seen_[token].in_prompt = true;
  }
  if (rules_->constraint) place_ = rules_->constraint->Start();
}

bool RuledAnswer::Ends(int token) const {
  return std::find(enders_.begin(), enders_.end(), token) != enders_.end();
}

absl::Status RuledAnswer::Append(int token) {
  if (!active_) return absl::OkStatus();
  answer_.push_back(token);
  if (rules_->penalizes()) ++seen_[token].in_answer;
  if (place_ == nullptr) return absl::OkStatus();
  if (Ends(token) || rules_->constraint->Complete(place_)) {
    place_ = nullptr;
    return absl::OkStatus();
  }
  absl::StatusOr<TokenConstraint::PlaceRef> next = rules_->constraint->After(place_, token);
  if (!next.ok()) return next.status();
  place_ = *std::move(next);
  return absl::OkStatus();
}

TokenSetRef RuledAnswer::WithEnders(TokenSetRef permitted) const {
  if (std::all_of(enders_.begin(), enders_.end(),
                  [&](int token) { return Contains(*permitted, token); })) {
    return permitted;
  }
  // Rows at places alike have the same set, which goes to workers once.
  if (with_enders_.first != permitted) {
    TokenSet with = *permitted;
    for (const int token : enders_) Insert(token, &with);
    with_enders_ = {std::move(permitted), std::make_shared<const TokenSet>(std::move(with))};
  }
  return with_enders_.second;
}

bool RuledAnswer::costly() const { return place_ != nullptr && rules_->constraint->Costly(); }

bool RuledAnswer::complete() const {
  return place_ != nullptr && rules_->constraint->Complete(place_);
}

absl::StatusOr<TokenConstraint::PlaceRef> RuledAnswer::PlaceAfter(
    absl::Span<const int> path) const {
  TokenConstraint::PlaceRef place = place_;
  for (const int token : path) {
    // Beyond its end nothing of the answer is kept: any token will do.
    if (place == nullptr || Ends(token) || rules_->constraint->Complete(place)) return nullptr;
    absl::StatusOr<TokenConstraint::PlaceRef> next = rules_->constraint->After(place, token);
    if (!next.ok()) return next.status();
    place = *std::move(next);
  }
  // What is whole before its first token has no other way to say so than to end.
  const bool empty = answer_.empty() && path.empty();
  if (place != nullptr && !empty && rules_->constraint->Complete(place)) place = nullptr;
  return place;
}

bool RuledAnswer::Began(const std::vector<int>& word, absl::Span<const int> path) const {
  const size_t length = answer_.size() + path.size();
  const size_t before = word.size() - 1;
  if (before > length) return false;
  for (size_t i = 0; i < before; ++i) {
    const size_t at = length - before + i;
    if ((at < answer_.size() ? answer_[at] : path[at - answer_.size()]) != word[i]) return false;
  }
  return true;
}

bool RuledAnswer::TooShort(absl::Span<const int> path) const {
  return static_cast<int>(answer_.size() + path.size()) < rules_->min_tokens;
}

bool RuledAnswer::Allows(absl::Span<const int> path, int token) const {
  if (!active_) return true;
  if (allowed_ != nullptr && !Contains(*allowed_, token)) return false;
  if (std::binary_search(never_.begin(), never_.end(), token)) return false;
  for (const size_t i : phrases_) {
    const std::vector<int>& word = rules_->bad_words[i];
    if (word.back() == token && Began(word, path)) return false;
  }
  if (Ends(token)) return !TooShort(path);
  if (!rules_->constraint) return true;
  const absl::StatusOr<TokenConstraint::PlaceRef> place = PlaceAfter(path);
  if (!place.ok()) return false;
  return *place == nullptr || rules_->constraint->After(*place, token).ok();
}

double RuledAnswer::PenaltyOf(int in_answer) const {
  return in_answer > 0 ? rules_->presence_penalty + rules_->frequency_penalty * in_answer : 0;
}

AnswerEdits RuledAnswer::Edits() const {
  AnswerEdits edits;
  if (!active_) return edits;
  edits.permitted = allowed_;
  edits.biases.assign(rules_->logit_bias.begin(), rules_->logit_bias.end());
  // Once for the answer: a model's file may name thousands, and a step may have hundreds of rows.
  for (const int token : never_) edits.biases.emplace_back(token, -INFINITY);
  edits.repetition_penalty = rules_->repetition_penalty;
  for (const auto& [token, seen] : seen_) {
    edits.penalties.push_back({token, PenaltyOf(seen.in_answer)});
  }
  return edits;
}

absl::StatusOr<RowEdits> RuledAnswer::EditsAfter(absl::Span<const int> path) const {
  RowEdits edits;
  if (!active_) return edits;
  if (rules_->constraint) {
    const absl::StatusOr<TokenConstraint::PlaceRef> place = PlaceAfter(path);
    if (!place.ok()) return place.status();
    if (*place != nullptr) {
      absl::StatusOr<TokenSetRef> permitted = rules_->constraint->Permitted(*place);
      if (!permitted.ok()) return permitted.status();
      edits.permitted = *std::move(permitted);
      if (edits.permitted != nullptr && rules_->constraint->MayEnd(*place)) {
        edits.permitted = WithEnders(std::move(edits.permitted));
      }
    }
  }
  for (const size_t i : phrases_) {
    const std::vector<int>& word = rules_->bad_words[i];
    if (Began(word, path)) edits.forbidden.push_back(word.back());
  }
  if (TooShort(path)) {
    edits.forbidden.insert(edits.forbidden.end(), enders_.begin(), enders_.end());
  }
  if (!rules_->penalizes()) return edits;
  for (const auto& [token, count] : Counts(path)) {
    const auto it = seen_.find(token);
    edits.penalties.push_back(
        {token, PenaltyOf(count + (it != seen_.end() ? it->second.in_answer : 0))});
  }
  return edits;
}

absl::Status RuledAnswer::Apply(absl::Span<const int> path, float* logits, int vocabulary) const {
  if (!active_) return absl::OkStatus();
  const absl::StatusOr<RowEdits> row = EditsAfter(path);
  if (!row.ok()) return row.status();
  if (ApplyEdits(Edits(), *row, absl::MakeSpan(logits, vocabulary))) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "no token may follow ", answer_.size() + path.size(),
      " tokens of the answer: structured output, allowed_token_ids, bad_words and min_tokens "
      "together exclude the whole vocabulary"));
}

}  // namespace espalier
