#include "serving/engine/wishes.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// Of a tree's nodes, and of what comes before them, in the rows of one batch.
class Path {
 public:
  explicit Path(const RunnerBatch& batch) : batch_(batch) {}

  // Whether the row's token is what was chosen before it, as far as this batch knows.
  bool Reaches(int row) const {
    const int begin = batch_.ancestor_start[row], end = batch_.ancestor_start[row + 1];
    if (begin == end) return true;
    const int sequence = batch_.sequence_start[batch_.row_sequence[row]];
    const int before = end - begin >= 2 ? batch_.ancestor_slots[end - 2]
                       : batch_.row_prefix[row] > 0
                           ? batch_.sequence_slots[sequence + batch_.row_prefix[row] - 1]
                           : -1;
    const auto found = tokens_.find(before);
    return found == tokens_.end() || found->second == batch_.tokens[row];
  }
  // -1: nothing comes behind it.
  void Choose(int row, int token) { tokens_[batch_.slots[row]] = token; }

 private:
  const RunnerBatch& batch_;
  absl::flat_hash_map<int32_t, int> tokens_;  // chosen behind a row, by its slot
};

TokenRule RuleOf(const RunnerBatch& batch, int row) {
  return batch.sequence_rule.empty() ? TokenRule() : batch.sequence_rule[batch.row_sequence[row]];
}

absl::StatusOr<std::vector<TokenChoice>> ChoicesOf(const RunnerBatch& batch, int row, int wish,
                                                   absl::Span<const float> logits, Path* path) {
  const TokenRule rule = RuleOf(batch, row);
  const int64_t position = batch.positions[row] + 1;
  if (wish > 0) {
    return rule.sampling.greedy() ? TopChoices(logits, wish)
                                  : SharedChoices(logits, wish, rule.sampling, position);
  }
  int token = -1;
  if (path->Reaches(row)) {
    const absl::StatusOr<int> chosen =
        ChooseToken(logits, rule.sampling, rule.shared_noise, position);
    if (!chosen.ok()) return chosen.status();
    token = *chosen;
  }
  path->Choose(row, token);
  return std::vector<TokenChoice>{{token, 0}};
}

absl::Status Bad(const std::string& what) { return absl::InvalidArgumentError(what); }

absl::Status CheckChoices(const std::vector<TokenChoice>& choices, int wish, int vocabulary,
                          size_t row) {
  const size_t most = wish == RunnerBatch::kToken ? 1 : static_cast<size_t>(wish);
  if (choices.size() > most) {
    return Bad(
        absl::StrCat("row ", row, " has ", choices.size(), " choices, ", most, " were wished"));
  }
  const int least = wish == RunnerBatch::kToken ? -1 : 0;
  for (const TokenChoice& choice : choices) {
    if (choice.token < least || choice.token >= vocabulary || !(choice.probability >= 0) ||
        !(choice.probability <= 1 + 1e-9)) {
      return Bad(absl::StrCat("row ", row, " has token ", choice.token, " of probability ",
                              choice.probability, " in a vocabulary of ", vocabulary));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckWishes(const RunnerBatch& batch, int vocabulary) {
  if (!batch.wishes.empty() && batch.wishes.size() != batch.logit_rows.size()) {
    return Bad(absl::StrCat("wishes has ", batch.wishes.size(), " entries for ",
                            batch.logit_rows.size(), " logit_rows"));
  }
  for (size_t i = 0; i < batch.wishes.size(); ++i) {
    if (batch.wishes[i] >= RunnerBatch::kToken && batch.wishes[i] <= vocabulary) continue;
    return Bad(
        absl::StrCat("wishes[", i, "] is ", batch.wishes[i], "; accepted: -1 to ", vocabulary));
  }
  const size_t sequences = batch.sequence_start.empty() ? 0 : batch.sequence_start.size() - 1;
  if (!batch.sequence_rule.empty() && batch.sequence_rule.size() != sequences) {
    return Bad(absl::StrCat("sequence_rule has ", batch.sequence_rule.size(), " entries for ",
                            sequences, " sequences"));
  }
  for (size_t i = 0; i < batch.sequence_rule.size(); ++i) {
    const absl::Status status = ValidateSampling(batch.sequence_rule[i].sampling);
    if (!status.ok()) return Bad(absl::StrCat("sequence_rule[", i, "]: ", status.message()));
  }
  return absl::OkStatus();
}

void GrantWishes(const RunnerBatch& batch, RunnerLogits* logits, const ForEach& for_each) {
  logits->choices.clear();
  if (batch.wishes.empty()) return;
  const auto vocabulary = static_cast<size_t>(logits->vocabulary);
  const auto row_of = [&](size_t i) {
    return absl::MakeConstSpan(logits->values.data() + i * vocabulary, vocabulary);
  };
  logits->choices.resize(batch.logit_rows.size());
  std::vector<std::vector<size_t>> wishes(batch.sequence_start.size() - 1);  // by sequence
  for (size_t i = 0; i < batch.wishes.size(); ++i) {
    if (batch.wishes[i] == RunnerBatch::kLogits) continue;
    wishes[batch.row_sequence[batch.logit_rows[i]]].push_back(i);
  }
  const auto grant = [&](int sequence) {
    Path path(batch);
    for (const size_t i : wishes[sequence]) {
      absl::StatusOr<std::vector<TokenChoice>> choices =
          ChoicesOf(batch, batch.logit_rows[i], batch.wishes[i], row_of(i), &path);
      // Whoever wished for them finds out what is wrong by the logits.
      if (choices.ok()) logits->choices[i] = *std::move(choices);
    }
  };
  const int sequences = static_cast<int>(wishes.size());
  if (for_each) {
    for_each(sequences, grant);
  } else {
    for (int s = 0; s < sequences; ++s) grant(s);
  }
  size_t kept = 0;
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    if (!logits->choices[i].empty()) continue;
    const absl::Span<const float> row = row_of(i);
    if (kept != i) std::copy(row.begin(), row.end(), logits->values.begin() + kept * vocabulary);
    ++kept;
  }
  logits->values.resize(kept * vocabulary);
}

absl::Status CheckLogits(size_t rows, absl::Span<const int32_t> wishes, int vocabulary,
                         const RunnerLogits& logits) {
  size_t with_logits = rows;
  if (!logits.choices.empty()) {
    if (logits.choices.size() != rows) {
      return Bad(absl::StrCat("there are choices for ", logits.choices.size(), " rows of ", rows));
    }
    for (size_t i = 0; i < rows; ++i) {
      const int wish = wishes.empty() ? RunnerBatch::kLogits : wishes[i];
      if (absl::Status s = CheckChoices(logits.choices[i], wish, vocabulary, i); !s.ok()) return s;
      if (!logits.choices[i].empty()) --with_logits;
    }
  }
  const size_t expected = with_logits * static_cast<size_t>(vocabulary);
  if (logits.vocabulary == vocabulary && logits.values.size() == expected) return absl::OkStatus();
  return Bad(absl::StrCat("there are ", logits.values.size(), " logits over a vocabulary of ",
                          logits.vocabulary, ", expected ", expected, " over ", vocabulary));
}

}  // namespace espalier
