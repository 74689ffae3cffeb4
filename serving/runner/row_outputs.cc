#include "serving/runner/row_outputs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// The sampled path through a tree, from the rows of one batch.
class Path {
 public:
  explicit Path(const RunnerBatch& batch) : batch_(batch) {}

  // True if the row's token is the one sampled after its parent, as far as this batch knows.
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
  // Records the token sampled after a row; -1: the path ends.
  void Choose(int row, int token) { tokens_[batch_.slots[row]] = token; }

 private:
  const RunnerBatch& batch_;
  absl::flat_hash_map<int32_t, int> tokens_;  // sampled after a row, by its slot
};

const SamplingMetadata& MetadataOf(const RunnerBatch& batch, int row) {
  static const SamplingMetadata kPlain;
  return batch.sequence_sampling.empty() ? kPlain
                                         : batch.sequence_sampling[batch.row_sequence[row]];
}

// The output of one row; no choices if sampling failed.
struct RowSample {
  std::vector<TokenProbability> choices;
  TokenLogprobs logprobs;
};

// Samples the rows of one sequence.
class RowSampler {
 public:
  explicit RowSampler(const RunnerBatch& batch) : batch_(batch), path_(batch) {}

  // `i`: index into logit_rows.
  RowSample Give(size_t i, absl::Span<const float> logits) {
    const int row = batch_.logit_rows[i], row_output = batch_.row_outputs[i];
    const SamplingMetadata& metadata = MetadataOf(batch_, row);
    if (row_output == RunnerBatch::kPromptLogprob) return PromptLogprob(i, logits, metadata);
    if (row_output == RunnerBatch::kToken && !path_.Reaches(row)) {
      path_.Choose(row, -1);
      return {.choices = {{-1, 0}}};
    }
    absl::Span<const float> edited = logits;
    if (!Edit(i, logits, metadata, &edited)) return {};
    return row_output == RunnerBatch::kToken ? Token(row, logits, edited, metadata)
                                             : Best(row, row_output, edited, metadata);
  }

 private:
  // Returns false if all tokens are masked. `edited`: the edited logits, valid until the next row.
  bool Edit(size_t i, absl::Span<const float> logits, const SamplingMetadata& metadata,
            absl::Span<const float>* edited) {
    if (metadata.edits == nullptr) return true;
    static const RowLogitEdits kNone;
    edited_.assign(logits.begin(), logits.end());
    *edited = edited_;
    return ApplyLogitEdits(*metadata.edits, batch_.row_edits.empty() ? kNone : batch_.row_edits[i],
                           absl::MakeSpan(edited_));
  }

  RowSample Token(int row, absl::Span<const float> logits, absl::Span<const float> edited,
                  const SamplingMetadata& metadata) {
    const absl::StatusOr<int> token =
        SampleToken(edited, metadata.sampling, metadata.coupled, batch_.positions[row] + 1);
    if (!token.ok()) return {};
    path_.Choose(row, *token);
    RowSample sample{.choices = {{*token, 0}}};
    if (metadata.logprobs >= 0) sample.logprobs = LogprobsOf(logits, *token, metadata.logprobs);
    return sample;
  }

  RowSample Best(int row, int count, absl::Span<const float> logits,
                 const SamplingMetadata& metadata) const {
    absl::StatusOr<std::vector<TokenProbability>> best =
        metadata.sampling.greedy()
            ? TopTokens(logits, count)
            : CoupledTopTokens(logits, count, metadata.sampling, batch_.positions[row] + 1);
    if (!best.ok()) return {};
    return {.choices = *std::move(best)};
  }

  RowSample PromptLogprob(size_t i, absl::Span<const float> logits,
                          const SamplingMetadata& metadata) const {
    const int token = batch_.next_prompt_tokens[i];
    TokenLogprobs logprobs = LogprobsOf(logits, token, std::max(metadata.prompt_logprobs, 0));
    if (std::isnan(logprobs.logprob)) return {};
    return {.choices = {{token, 0}}, .logprobs = std::move(logprobs)};
  }

  static TokenLogprobs LogprobsOf(absl::Span<const float> logits, int token, int top) {
    return espalier::LogprobsOf(logits.data(), static_cast<int>(logits.size()), token, top);
  }

  const RunnerBatch& batch_;
  Path path_;
  std::vector<float> edited_;
};

absl::Status Bad(const std::string& what) { return absl::InvalidArgumentError(what); }

absl::Status CheckChoices(const std::vector<TokenProbability>& choices, int row_output,
                          int vocabulary, size_t row) {
  const size_t most = row_output < 0 ? 1 : static_cast<size_t>(row_output);
  if (choices.size() > most) {
    return Bad(
        absl::StrCat("row ", row, " has ", choices.size(), " choices, ", most, " were requested"));
  }
  const int least = row_output == RunnerBatch::kToken ? -1 : 0;
  for (const TokenProbability& choice : choices) {
    if (choice.token < least || choice.token >= vocabulary || !(choice.probability >= 0) ||
        !(choice.probability <= 1 + 1e-9)) {
      return Bad(absl::StrCat("row ", row, " has token ", choice.token, " of probability ",
                              choice.probability, " in a vocabulary of ", vocabulary));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLogprobs(const TokenLogprobs& logprobs, int vocabulary, size_t row) {
  const auto good = [&](int token, float logprob) {
    return token >= 0 && token < vocabulary && std::isfinite(logprob);
  };
  const bool none = logprobs.token == -1 && logprobs.top.empty();
  const bool all = std::all_of(logprobs.top.begin(), logprobs.top.end(),
                               [&](const auto& top) { return good(top.first, top.second); });
  if (none || (good(logprobs.token, logprobs.logprob) && all && logprobs.rank >= 1 &&
               logprobs.top.size() <= kMaxTopLogprobs)) {
    return absl::OkStatus();
  }
  return Bad(absl::StrCat("row ", row, " has log-probabilities that cannot be, of token ",
                          logprobs.token, " and ", logprobs.top.size(), " others"));
}

}  // namespace

absl::Status CheckRowOutputs(const RunnerBatch& batch, int vocabulary) {
  const auto check_size = [](const char* name, size_t size, const char* of, size_t expected) {
    if (size == 0 || size == expected) return absl::OkStatus();
    return Bad(absl::StrCat(name, " has ", size, " entries for ", expected, " ", of));
  };
  const size_t rows = batch.logit_rows.size();
  const size_t sequences = batch.sequence_start.empty() ? 0 : batch.sequence_start.size() - 1;
  absl::Status status = check_size("row_outputs", batch.row_outputs.size(), "logit_rows", rows);
  status.Update(
      check_size("next_prompt_tokens", batch.next_prompt_tokens.size(), "logit_rows", rows));
  status.Update(check_size("row_edits", batch.row_edits.size(), "logit_rows", rows));
  status.Update(
      check_size("sequence_sampling", batch.sequence_sampling.size(), "sequences", sequences));
  if (!status.ok()) return status;
  for (size_t i = 0; i < batch.row_outputs.size(); ++i) {
    const int row_output = batch.row_outputs[i];
    if (row_output < RunnerBatch::kPromptLogprob || row_output > vocabulary) {
      return Bad(
          absl::StrCat("row_outputs[", i, "] is ", row_output, "; accepted: -2 to ", vocabulary));
    }
    if (row_output != RunnerBatch::kPromptLogprob) continue;
    const int token = batch.next_prompt_tokens.empty() ? -1 : batch.next_prompt_tokens[i];
    if (token < 0 || token >= vocabulary) {
      return Bad(absl::StrCat("next_prompt_tokens[", i, "] is ", token, " in a vocabulary of ",
                              vocabulary));
    }
  }
  for (size_t i = 0; i < batch.sequence_sampling.size(); ++i) {
    const SamplingMetadata& metadata = batch.sequence_sampling[i];
    absl::Status of_metadata = ValidateSampling(metadata.sampling);
    for (const int count : {metadata.logprobs, metadata.prompt_logprobs}) {
      if (count < -1 || count > kMaxTopLogprobs) {
        of_metadata.Update(Bad(absl::StrCat("log-probabilities of ", count,
                                            " tokens; accepted: -1 to ", kMaxTopLogprobs)));
      }
    }
    if (!of_metadata.ok())
      return Bad(absl::StrCat("sequence_sampling[", i, "]: ", of_metadata.message()));
  }
  return absl::OkStatus();
}

void SampleRows(const RunnerBatch& batch, RunnerOutput* logits, const ForEach& for_each) {
  logits->choices.clear();
  logits->logprobs.clear();
  if (batch.row_outputs.empty()) return;
  const auto vocabulary = static_cast<size_t>(logits->vocabulary);
  const auto row_of = [&](size_t i) {
    return absl::MakeConstSpan(logits->values.data() + i * vocabulary, vocabulary);
  };
  logits->choices.resize(batch.logit_rows.size());
  const bool reported =
      !batch.next_prompt_tokens.empty() ||
      std::any_of(batch.sequence_sampling.begin(), batch.sequence_sampling.end(),
                  [](const SamplingMetadata& metadata) { return metadata.logprobs >= 0; });
  if (reported) logits->logprobs.resize(batch.logit_rows.size());
  std::vector<std::vector<size_t>> row_outputs(batch.sequence_start.size() - 1);  // by sequence
  for (size_t i = 0; i < batch.row_outputs.size(); ++i) {
    if (batch.row_outputs[i] == RunnerBatch::kLogits) continue;
    row_outputs[batch.row_sequence[batch.logit_rows[i]]].push_back(i);
  }
  const auto grant = [&](int sequence) {
    RowSampler sampler(batch);
    for (const size_t i : row_outputs[sequence]) {
      // A row without choices keeps its logits, in which the caller finds the error.
      RowSample sample = sampler.Give(i, row_of(i));
      logits->choices[i] = std::move(sample.choices);
      if (reported) logits->logprobs[i] = std::move(sample.logprobs);
    }
  };
  const int sequences = static_cast<int>(row_outputs.size());
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

absl::Status CheckRunnerOutput(size_t rows, absl::Span<const int32_t> row_outputs, int vocabulary,
                               const RunnerOutput& logits) {
  size_t with_logits = rows;
  if (!logits.choices.empty()) {
    if (logits.choices.size() != rows) {
      return Bad(absl::StrCat("there are choices for ", logits.choices.size(), " rows of ", rows));
    }
    for (size_t i = 0; i < rows; ++i) {
      const int row_output = row_outputs.empty() ? RunnerBatch::kLogits : row_outputs[i];
      if (absl::Status s = CheckChoices(logits.choices[i], row_output, vocabulary, i); !s.ok())
        return s;
      if (!logits.choices[i].empty()) --with_logits;
    }
  }
  if (!logits.logprobs.empty() && logits.logprobs.size() != rows) {
    return Bad(absl::StrCat("there are log-probabilities for ", logits.logprobs.size(), " rows of ",
                            rows));
  }
  for (size_t i = 0; i < logits.logprobs.size(); ++i) {
    if (absl::Status s = CheckLogprobs(logits.logprobs[i], vocabulary, i); !s.ok()) return s;
  }
  const size_t expected = with_logits * static_cast<size_t>(vocabulary);
  if (logits.vocabulary == vocabulary && logits.values.size() == expected) return absl::OkStatus();
  return Bad(absl::StrCat("there are ", logits.values.size(), " logits over a vocabulary of ",
                          logits.vocabulary, ", expected ", expected, " over ", vocabulary));
}

}  // namespace espalier
