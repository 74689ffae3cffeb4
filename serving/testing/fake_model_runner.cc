#include "serving/testing/fake_model_runner.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/runner/row_outputs.h"

namespace espalier {
namespace {

uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

uint64_t HashPath(uint64_t seed, absl::Span<const int> path) {
  uint64_t hash = Mix(seed);
  for (const int token : path) hash = Mix(hash ^ static_cast<uint64_t>(token));
  return hash;
}

absl::Status Broken(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("runner batch: ", what));
}

int AdapterOf(const RunnerBatch& batch, int row) {
  return batch.row_adapter.empty() ? -1 : batch.row_adapter[row];
}

// True for ascending offsets from 0 to `size`.
bool AreOffsets(const std::vector<int32_t>& offsets, size_t count, size_t size) {
  return offsets.size() == count + 1 && offsets.front() == 0 &&
         std::is_sorted(offsets.begin(), offsets.end()) &&
         offsets.back() == static_cast<int32_t>(size);
}

}  // namespace

FakeModel HashModel(uint64_t seed, int vocabulary, float scale) {
  return [=](absl::Span<const int> path) {
    const uint64_t hash = HashPath(seed, path);
    std::vector<float> logits(vocabulary);
    for (int i = 0; i < vocabulary; ++i) {
      logits[i] = scale * static_cast<float>(Mix(hash + i) >> 40) / (1 << 24);
    }
    return logits;
  };
}

FakeModel AgreeingModel(FakeModel base, FakeModel other, double agreement, uint64_t seed) {
  return [=](absl::Span<const int> path) {
    const double coin = static_cast<double>(HashPath(seed, path) >> 11) * 0x1.0p-53;
    return coin < agreement ? base(path) : other(path);
  };
}

FakeModel DisagreeingModel(FakeModel base) {
  return [=](absl::Span<const int> path) {
    std::vector<float> logits = base(path);
    for (float& logit : logits) logit = -logit;
    return logits;
  };
}

std::vector<int> GreedyContinuation(const FakeModel& model, std::vector<int> prompt, int count) {
  std::vector<int> out;
  for (int i = 0; i < count; ++i) {
    const std::vector<float> logits = model(prompt);
    const int token =
        static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    out.push_back(token);
    prompt.push_back(token);
  }
  return out;
}

RunnerLimits FakeModelRunner::LargeLimits(int vocabulary) {
  return {.vocabulary = vocabulary,
          .kv_slots = 4096,
          .max_rows = 256,
          .max_sequences = 64,
          .max_context_slots = 8192,
          .max_ancestor_slots = 4096,
          .max_positions = 256};
}

FakeModelRunner::FakeModelRunner(RunnerLimits limits, FakeModel model)
    : limits_(limits), model_(std::move(model)), slots_(limits.kv_slots) {}

void FakeModelRunner::LoseCache() {
  slots_.assign(slots_.size(), Slot());
  ++cache_generation_;
}

absl::Status FakeModelRunner::Check(const RunnerBatch& batch) const {
  const size_t rows = batch.tokens.size();
  if (rows == 0) return Broken("no rows");
  if (static_cast<int>(rows) > limits_.max_rows) return Broken("too many rows");
  if (batch.positions.size() != rows || batch.slots.size() != rows ||
      batch.row_sequence.size() != rows || batch.row_prefix.size() != rows ||
      !AreOffsets(batch.ancestor_start, rows, batch.ancestor_slots.size())) {
    return Broken("lists of different lengths");
  }
  if (!batch.row_adapter.empty() && batch.row_adapter.size() != rows) return Broken("row_adapter");
  for (const int adapter : batch.row_adapter) {
    if (adapter < -1 || adapter >= limits_.adapters) return Broken("adapter");
  }
  if (batch.wants_hidden && limits_.hidden == 0) return Broken("hidden states");
  const int sequences = static_cast<int>(batch.sequence_start.size()) - 1;
  if (sequences < 1 || sequences > limits_.max_sequences ||
      !AreOffsets(batch.sequence_start, sequences, batch.sequence_slots.size())) {
    return Broken("sequences");
  }
  if (static_cast<int>(batch.sequence_slots.size()) > limits_.max_context_slots ||
      static_cast<int>(batch.ancestor_slots.size()) > limits_.max_ancestor_slots) {
    return Broken("too many slots");
  }
  const std::set<int32_t> different(batch.slots.begin(), batch.slots.end());
  if (different.size() != rows) return Broken("two rows write one slot");
  if (*different.begin() < 0 || *different.rbegin() >= limits_.kv_slots) return Broken("slot");
  for (size_t row = 0; row < rows; ++row) {
    if (batch.tokens[row] < 0 || batch.tokens[row] >= limits_.vocabulary) return Broken("token");
    if (batch.positions[row] < 0 || batch.positions[row] >= limits_.max_positions) {
      return Broken("position");
    }
    const int sequence = batch.row_sequence[row];
    if (sequence < 0 || sequence >= sequences ||
        batch.row_prefix[row] >
            batch.sequence_start[sequence + 1] - batch.sequence_start[sequence]) {
      return Broken("sequence or prefix of a row");
    }
  }
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    const int row = batch.logit_rows[i];
    if (row < 0 || row >= static_cast<int>(rows) || (i > 0 && row <= batch.logit_rows[i - 1])) {
      return Broken("logit_rows");
    }
  }
  return absl::OkStatus();
}

absl::Status FakeModelRunner::Path(const RunnerBatch& batch, int row,
                                   std::vector<int>* path) const {
  std::vector<int32_t> visible;
  const int start = batch.sequence_start[batch.row_sequence[row]];
  for (int i = 0; i < batch.row_prefix[row]; ++i) {
    visible.push_back(batch.sequence_slots[start + i]);
  }
  for (int i = batch.ancestor_start[row]; i < batch.ancestor_start[row + 1]; ++i) {
    visible.push_back(batch.ancestor_slots[i]);
  }
  if (visible.empty() || visible.back() != batch.slots[row]) {
    return Broken(absl::StrCat("row ", row, " does not see its own slot last"));
  }
  for (size_t i = 0; i < visible.size(); ++i) {
    const Slot& slot = slots_[visible[i]];
    if (slot.position != static_cast<int>(i)) {
      return Broken(absl::StrCat("row ", row, " sees position ", slot.position, " at depth ", i));
    }
    if (slot.adapter != AdapterOf(batch, row)) {
      return Broken(absl::StrCat("row ", row, " sees what adapter ", slot.adapter, " has written"));
    }
    path->push_back(slot.token);
  }
  return absl::OkStatus();
}

absl::Status FakeModelRunner::Step(const RunnerBatch& batch, RunnerOutput* logits) {
  if (absl::Status status = Check(batch); !status.ok()) return status;
  ++steps_;
  rows_ += batch.rows();
  largest_batch_ = std::max(largest_batch_, batch.rows());
  if (fail_from_ > 0 && steps_ >= fail_from_) return absl::Status(failure_, "the worker is gone");
  for (int row = 0; row < batch.rows(); ++row) {
    slots_[batch.slots[row]] = {batch.tokens[row], batch.positions[row], AdapterOf(batch, row)};
  }
  logits->vocabulary = limits_.vocabulary;
  logits->values.clear();
  logits->hidden.clear();
  logits->choices.clear();
  logits->logprobs.clear();
  size_t wanted = 0;
  for (int row = 0; row < batch.rows(); ++row) {
    std::vector<int> path;
    if (absl::Status status = Path(batch, row, &path); !status.ok()) return status;
    if (wanted == batch.logit_rows.size() || batch.logit_rows[wanted] != row) continue;
    ++wanted;
    const int adapter = AdapterOf(batch, row);
    const std::vector<float> values = adapter < 0 ? model_(path) : adapters_[adapter](path);
    logits->values.insert(logits->values.end(), values.begin(), values.end());
    if (!batch.wants_hidden) continue;
    logits->hidden.insert(logits->hidden.end(), values.begin(), values.begin() + limits_.hidden);
  }
  if (absl::Status status = CheckRowOutputs(batch, limits_.vocabulary); !status.ok()) return status;
  const auto logits_wished = std::count(batch.row_outputs.begin(), batch.row_outputs.end(), 0);
  rows_with_logits_ += batch.row_outputs.empty() ? static_cast<int64_t>(wanted) : logits_wished;
  if (steps_ % 2 == 1) return absl::OkStatus();
  SampleRows(batch, logits);
  for (const auto& choices : logits->choices) choices_ += choices.empty() ? 0 : 1;
  return absl::OkStatus();
}

}  // namespace espalier
