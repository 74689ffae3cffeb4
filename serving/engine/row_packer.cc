#include "serving/engine/row_packer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// One batch being filled. A sequence lists only the slots that its rows in this batch see.
class BatchFiller {
 public:
  explicit BatchFiller(const RunnerLimits& limits) : limits_(limits) { Clear(); }

  bool empty() const { return batch_.rows() == 0; }

  bool Fits(int sequence, const SequenceRows::Row& row) const {
    const bool joins = sequence == last_sequence_;
    const int longer = std::max(0, row.prefix - (joins ? last_prefix_ : 0));
    return batch_.rows() < limits_.max_rows &&
           sequences_ + (joins ? 0 : 1) <= limits_.max_sequences &&
           context_slots_ + longer <= limits_.max_context_slots &&
           static_cast<int>(batch_.ancestor_slots.size() + row.ancestors.size()) <=
               limits_.max_ancestor_slots;
  }

  void Add(int sequence, const SequenceRows& of, const SequenceRows::Row& row) {
    if (sequence != last_sequence_) {
      CloseSequence();
      last_sequence_ = sequence;
      last_prefix_ = 0;
      ++sequences_;
    }
    context_slots_ += std::max(0, row.prefix - last_prefix_);
    last_prefix_ = std::max(last_prefix_, static_cast<int>(row.prefix));
    last_slots_ = of.slots;
    if (row.wants_logits) {
      batch_.logit_rows.push_back(batch_.rows());
      batch_.wants_hidden = batch_.wants_hidden || row.wants_hidden;
      batch_.choices_suffice =
          row.choice_suffices && (batch_.choices_suffice || batch_.logit_rows.size() == 1);
      wanted_.push_back({sequence, row.wants_hidden});
    }
    if (limits_.adapters > 0) batch_.row_adapter.push_back(of.adapter);
    batch_.tokens.push_back(row.token);
    batch_.positions.push_back(row.position);
    batch_.slots.push_back(row.slot);
    batch_.row_sequence.push_back(sequences_ - 1);
    batch_.row_prefix.push_back(row.prefix);
    batch_.ancestor_slots.insert(batch_.ancestor_slots.end(), row.ancestors.begin(),
                                 row.ancestors.end());
    batch_.ancestor_start.push_back(static_cast<int32_t>(batch_.ancestor_slots.size()));
  }

  const RunnerBatch& Close() {
    CloseSequence();
    return batch_;
  }
  struct Wanted {
    int sequence = 0;
    bool hidden = false;
  };
  const std::vector<Wanted>& wanted() const { return wanted_; }  // of each logits row

  void Clear() {
    batch_ = RunnerBatch();
    batch_.ancestor_start.push_back(0);
    batch_.sequence_start.push_back(0);
    wanted_.clear();
    sequences_ = 0;
    context_slots_ = 0;
    last_sequence_ = -1;
    last_prefix_ = 0;
    last_slots_ = {};
  }

 private:
  void CloseSequence() {
    if (last_sequence_ < 0) return;
    batch_.sequence_slots.insert(batch_.sequence_slots.end(), last_slots_.begin(),
                                 last_slots_.begin() + last_prefix_);
    batch_.sequence_start.push_back(static_cast<int32_t>(batch_.sequence_slots.size()));
    last_sequence_ = -1;
  }

  RunnerLimits limits_;
  RunnerBatch batch_;
  std::vector<Wanted> wanted_;
  int sequences_ = 0;
  int context_slots_ = 0;
  int last_sequence_ = -1;
  int last_prefix_ = 0;
  absl::Span<const int32_t> last_slots_;
};

absl::Status CheckShape(const RunnerLogits& logits, const RunnerBatch& batch,
                        const RunnerLimits& limits) {
  const size_t expected = batch.logit_rows.size() * static_cast<size_t>(limits.vocabulary);
  const size_t hidden =
      batch.wants_hidden ? batch.logit_rows.size() * static_cast<size_t>(limits.hidden) : 0;
  if (batch.wants_hidden && logits.hidden.size() != hidden) {
    return absl::InternalError(absl::StrCat("the model runner returned ", logits.hidden.size(),
                                            " numbers of hidden states, expected ", hidden));
  }
  if (!logits.choices.empty()) {
    const bool known =
        std::all_of(logits.choices.begin(), logits.choices.end(),
                    [&](int32_t token) { return token >= 0 && token < limits.vocabulary; });
    if (batch.choices_suffice && known && logits.choices.size() == batch.logit_rows.size()) {
      return absl::OkStatus();
    }
    return absl::InternalError(
        absl::StrCat("the model runner chose ", logits.choices.size(), " tokens",
                     known ? "" : " beyond the vocabulary", " for ", batch.logit_rows.size(),
                     " rows", batch.choices_suffice ? "" : ", whose logits are wanted"));
  }
  if (logits.vocabulary == limits.vocabulary && logits.values.size() == expected) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("the model runner returned ", logits.values.size(),
                                          " logits over a vocabulary of ", logits.vocabulary,
                                          ", expected ", expected, " over ", limits.vocabulary));
}

}  // namespace

absl::StatusOr<StepLogits> RunRows(ModelRunner& runner, absl::Span<const SequenceRows> sequences,
                                   StepLogits old) {
  const RunnerLimits limits = runner.limits();
  StepLogits out = std::move(old);
  out.batches_ = 0;
  out.rows_.assign(sequences.size(), {});
  BatchFiller filler(limits);
  const auto flush = [&]() -> absl::Status {
    const RunnerBatch& batch = filler.Close();
    if (out.batches_ == static_cast<int>(out.blocks_.size())) {
      out.blocks_.push_back(std::make_unique<RunnerLogits>());
    }
    RunnerLogits* logits = out.blocks_[out.batches_].get();
    logits->hidden.clear();
    logits->choices.clear();
    if (absl::Status status = runner.Step(batch, logits); !status.ok()) return status;
    if (!batch.logit_rows.empty()) {
      if (absl::Status status = CheckShape(*logits, batch, limits); !status.ok()) return status;
    }
    for (size_t i = 0; i < filler.wanted().size(); ++i) {
      const auto& [sequence, hidden] = filler.wanted()[i];
      const bool chosen = !logits->choices.empty();
      out.rows_[sequence].push_back(
          {chosen ? nullptr : logits->row(static_cast<int>(i)),
           hidden ? logits->hidden.data() + i * static_cast<size_t>(limits.hidden) : nullptr,
           chosen ? logits->choices[i] : -1});
    }
    ++out.batches_;
    filler.Clear();
    return absl::OkStatus();
  };
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int sequence = static_cast<int>(s);
    for (const SequenceRows::Row& row : sequences[s].rows) {
      if (!filler.Fits(sequence, row) && !filler.empty()) {
        if (absl::Status status = flush(); !status.ok()) return status;
      }
      if (!filler.Fits(sequence, row)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "a row that sees ", row.prefix, " positions and ", row.ancestors.size(),
            " tree nodes exceeds the model runner's limits: ", limits.max_context_slots, " and ",
            limits.max_ancestor_slots));
      }
      filler.Add(sequence, sequences[s], row);
    }
  }
  if (!filler.empty()) {
    if (absl::Status status = flush(); !status.ok()) return status;
  }
  return out;
}

}  // namespace espalier
