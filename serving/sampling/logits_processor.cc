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

// Returns each different token of a path with its count.
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

absl::Status ValidateLogitsProcessor(const LogitsProcessorOptions& options, int vocabulary) {
  absl::Status status = CheckRange("repetition_penalty", options.repetition_penalty, 0.01, 100);
  status.Update(CheckRange("presence_penalty", options.presence_penalty, -2, 2));
  status.Update(CheckRange("frequency_penalty", options.frequency_penalty, -2, 2));
  if (options.min_tokens < 0) {
    status.Update(absl::InvalidArgumentError(
        absl::StrCat("min_tokens is ", options.min_tokens, ", expected 0 or more")));
  }
  for (const auto& [token, bias] : options.logit_bias) {
    if (token < 0 || token >= vocabulary) {
      status.Update(OutOfVocabulary("logit_bias", token, vocabulary));
    }
    status.Update(CheckRange(absl::StrCat("logit_bias of token ", token), bias, -100, 100));
  }
  for (const int token : options.allowed) {
    if (token < 0 || token >= vocabulary) {
      status.Update(OutOfVocabulary("allowed_token_ids", token, vocabulary));
    }
  }
  for (const std::vector<int>& word : options.bad_words) {
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

LogitsProcessor::LogitsProcessor(std::shared_ptr<const LogitsProcessorOptions> options,
                                 absl::Span<const int> prompt, std::vector<int> enders)
    : options_(std::move(options)), enders_(std::move(enders)) {
  active_ = options_ != nullptr &&
            (options_->penalizes() || options_->min_tokens > 0 || !options_->logit_bias.empty() ||
             !options_->allowed.empty() || !options_->bad_words.empty() || options_->constraint);
  if (!active_) return;
  if (!options_->allowed.empty()) {
    TokenBitmask allowed;
    for (const int token : options_->allowed) Insert(token, &allowed);
    allowed_ = std::make_shared<const TokenBitmask>(std::move(allowed));
  }
  for (size_t i = 0; i < options_->bad_words.size(); ++i) {
    const std::vector<int>& word = options_->bad_words[i];
    if (word.size() > 1) {
      phrases_.push_back(i);
    } else {
      never_.push_back(word[0]);
    }
  }
  std::sort(never_.begin(), never_.end());
  never_.erase(std::unique(never_.begin(), never_.end()), never_.end());
  if (options_->repetition_penalty != 1) {
    for (const int token : prompt) seen_[token].in_prompt = true;
  }
  if (options_->constraint) state_ = options_->constraint->Start();
}

bool LogitsProcessor::Ends(int token) const {
  return std::find(enders_.begin(), enders_.end(), token) != enders_.end();
}

absl::Status LogitsProcessor::Append(int token) {
  if (!active_) return absl::OkStatus();
  answer_.push_back(token);
  if (options_->penalizes()) ++seen_[token].in_answer;
  if (state_ == nullptr) return absl::OkStatus();
  if (Ends(token) || options_->constraint->Complete(state_)) {
    state_ = nullptr;
    return absl::OkStatus();
  }
  absl::StatusOr<TokenConstraint::StateRef> next = options_->constraint->After(state_, token);
  if (!next.ok()) return next.status();
  state_ = *std::move(next);
  return absl::OkStatus();
}

TokenBitmaskRef LogitsProcessor::WithEnders(TokenBitmaskRef permitted) const {
  if (std::all_of(enders_.begin(), enders_.end(),
                  [&](int token) { return Contains(*permitted, token); })) {
    return permitted;
  }
  // Rows with the same state share one bitmask, which is sent to workers once.
  if (with_enders_.first != permitted) {
    TokenBitmask with = *permitted;
    for (const int token : enders_) Insert(token, &with);
    with_enders_ = {std::move(permitted), std::make_shared<const TokenBitmask>(std::move(with))};
  }
  return with_enders_.second;
}

bool LogitsProcessor::costly() const { return state_ != nullptr && options_->constraint->Costly(); }

bool LogitsProcessor::complete() const {
  return state_ != nullptr && options_->constraint->Complete(state_);
}

absl::StatusOr<TokenConstraint::StateRef> LogitsProcessor::StateAfter(
    absl::Span<const int> path) const {
  TokenConstraint::StateRef state = state_;
  for (const int token : path) {
    // Nothing after the end is kept, so any token is allowed there.
    if (state == nullptr || Ends(token) || options_->constraint->Complete(state)) return nullptr;
    absl::StatusOr<TokenConstraint::StateRef> next = options_->constraint->After(state, token);
    if (!next.ok()) return next.status();
    state = *std::move(next);
  }
  // A constraint that is complete before the first token can only end with an end of sequence.
  const bool empty = answer_.empty() && path.empty();
  if (state != nullptr && !empty && options_->constraint->Complete(state)) state = nullptr;
  return state;
}

bool LogitsProcessor::Began(const std::vector<int>& word, absl::Span<const int> path) const {
  const size_t length = answer_.size() + path.size();
  const size_t before = word.size() - 1;
  if (before > length) return false;
  for (size_t i = 0; i < before; ++i) {
    const size_t at = length - before + i;
    if ((at < answer_.size() ? answer_[at] : path[at - answer_.size()]) != word[i]) return false;
  }
  return true;
}

bool LogitsProcessor::TooShort(absl::Span<const int> path) const {
  return static_cast<int>(answer_.size() + path.size()) < options_->min_tokens;
}

bool LogitsProcessor::Allows(absl::Span<const int> path, int token) const {
  if (!active_) return true;
  if (allowed_ != nullptr && !Contains(*allowed_, token)) return false;
  if (std::binary_search(never_.begin(), never_.end(), token)) return false;
  for (const size_t i : phrases_) {
    const std::vector<int>& word = options_->bad_words[i];
    if (word.back() == token && Began(word, path)) return false;
  }
  if (Ends(token)) return !TooShort(path);
  if (!options_->constraint) return true;
  const absl::StatusOr<TokenConstraint::StateRef> state = StateAfter(path);
  if (!state.ok()) return false;
  return *state == nullptr || options_->constraint->After(*state, token).ok();
}

double LogitsProcessor::PenaltyOf(int in_answer) const {
  return in_answer > 0 ? options_->presence_penalty + options_->frequency_penalty * in_answer : 0;
}

SequenceLogitEdits LogitsProcessor::Edits() const {
  SequenceLogitEdits edits;
  if (!active_) return edits;
  edits.permitted = allowed_;
  edits.biases.assign(options_->logit_bias.begin(), options_->logit_bias.end());
  // Once per sequence: a model's config may list thousands, and a step may have hundreds of rows.
  for (const int token : never_) edits.biases.emplace_back(token, -INFINITY);
  edits.repetition_penalty = options_->repetition_penalty;
  for (const auto& [token, seen] : seen_) {
    edits.penalties.push_back({token, PenaltyOf(seen.in_answer)});
  }
  return edits;
}

absl::StatusOr<RowLogitEdits> LogitsProcessor::EditsAfter(absl::Span<const int> path) const {
  RowLogitEdits edits;
  if (!active_) return edits;
  if (options_->constraint) {
    const absl::StatusOr<TokenConstraint::StateRef> state = StateAfter(path);
    if (!state.ok()) return state.status();
    if (*state != nullptr) {
      absl::StatusOr<TokenBitmaskRef> permitted = options_->constraint->AllowedTokens(*state);
      if (!permitted.ok()) return permitted.status();
      edits.permitted = *std::move(permitted);
      if (edits.permitted != nullptr && options_->constraint->MayEnd(*state)) {
        edits.permitted = WithEnders(std::move(edits.permitted));
      }
    }
  }
  for (const size_t i : phrases_) {
    const std::vector<int>& word = options_->bad_words[i];
    if (Began(word, path)) edits.forbidden.push_back(word.back());
  }
  if (TooShort(path)) {
    edits.forbidden.insert(edits.forbidden.end(), enders_.begin(), enders_.end());
  }
  if (!options_->penalizes()) return edits;
  for (const auto& [token, count] : Counts(path)) {
    const auto it = seen_.find(token);
    edits.penalties.push_back(
        {token, PenaltyOf(count + (it != seen_.end() ? it->second.in_answer : 0))});
  }
  return edits;
}

absl::Status LogitsProcessor::Apply(absl::Span<const int> path, float* logits,
                                    int vocabulary) const {
  if (!active_) return absl::OkStatus();
  const absl::StatusOr<RowLogitEdits> row = EditsAfter(path);
  if (!row.ok()) return row.status();
  if (ApplyLogitEdits(Edits(), *row, absl::MakeSpan(logits, vocabulary))) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "no token may follow ", answer_.size() + path.size(),
      " tokens of the answer: structured output, allowed_token_ids, bad_words and min_tokens "
      "together exclude the whole vocabulary"));
}

}  // namespace espalier
