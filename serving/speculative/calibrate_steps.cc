#include <algorithm>
#include <utility>
#include <vector>

#include "serving/speculative/step_latency.h"

namespace espalier {
namespace {

constexpr int kTurns = 5;        // of all sizes, so that a slow moment affects all of them
constexpr int kWarmupSteps = 3;  // smallest steps before each turn, after the largest one
constexpr double kLook = 8;      // doublings may take this fraction of the budget

// A step of `rows` rows: single tokens of as many sequences, or prompts if there are more rows than
// sequences.
RunnerBatch BatchOf(int rows, const RunnerLimits& limits) {
  int length = 1, sequences = rows;
  if (rows > limits.max_sequences) {
    sequences =
        std::min(limits.max_sequences, (rows + limits.max_positions - 1) / limits.max_positions);
    length = std::min(rows / sequences, limits.max_positions);
  }
  RunnerBatch batch;
  batch.sequence_start.push_back(0);
  batch.ancestor_start.push_back(0);
  for (int s = 0; s < sequences; ++s) {
    for (int position = 0; position < length; ++position) {
      const int slot = s * length + position;
      batch.sequence_slots.push_back(slot);
      batch.logit_rows.push_back(batch.rows());
      batch.row_outputs.push_back(RunnerBatch::kToken);
      batch.tokens.push_back(0);
      batch.positions.push_back(position);
      batch.slots.push_back(slot);
      batch.row_sequence.push_back(s);
      batch.row_prefix.push_back(position + 1);
      batch.ancestor_start.push_back(0);
    }
    batch.sequence_start.push_back(static_cast<int>(batch.sequence_slots.size()));
  }
  return batch;
}

}  // namespace

absl::Status Calibrate(ModelRunner& runner, int max_rows, double budget_seconds,
                       const std::function<double()>& seconds, StepLatency* latency) {
  const RunnerLimits limits = runner.limits();
  const int most = std::min({max_rows, limits.max_rows, limits.kv_slots, limits.max_context_slots});
  RunnerOutput output;
  double took = 0;
  const auto time = [&](int rows) {
    const RunnerBatch batch = BatchOf(rows, limits);
    const double start = seconds();
    absl::Status status = runner.Step(batch, &output);
    took = seconds() - start;
    return status;
  };
  // The first step of all allocates, and reads weights from disk.
  if (absl::Status s = time(1); !s.ok()) return s;
  // Doublings show how long all takes; sizes between them are added while there is time.
  std::vector<std::pair<int, double>> doublings;
  double turn = 0;
  for (int rows = 1; rows <= most && (rows <= 2 || turn < budget_seconds / kLook); rows *= 2) {
    if (absl::Status s = time(rows); !s.ok()) return s;
    doublings.emplace_back(rows, took);
    turn += took;
  }
  std::vector<int> sizes;
  for (const auto& [rows, alone] : doublings) sizes.push_back(rows);
  for (const auto& [rows, alone] : doublings) {
    const int step = std::max(1, rows / 8);
    for (int between = rows + step; between < 2 * rows && between <= most; between += step) {
      turn += 2 * alone;
      if (turn > budget_seconds / kTurns) break;
      sizes.push_back(between);
    }
  }
  std::sort(sizes.begin(), sizes.end());
  std::vector<std::vector<double>> times(sizes.size());
  const double begin = seconds();
  for (int i = 0; i < kTurns && (i == 0 || seconds() - begin < budget_seconds); ++i) {
    for (int warmup = 0; warmup < kWarmupSteps && doublings[0].second < budget_seconds / 100;
         ++warmup) {
      if (absl::Status s = time(sizes[0]); !s.ok()) return s;
    }
    for (size_t size = 0; size < sizes.size(); ++size) {
      if (absl::Status s = time(sizes[size]); !s.ok()) return s;
      times[size].push_back(took);
    }
  }
  for (size_t size = 0; size < sizes.size(); ++size) {
    const auto middle = times[size].begin() + static_cast<int64_t>(times[size].size() / 2);
    std::nth_element(times[size].begin(), middle, times[size].end());
    // As often as it takes for a size to tell the pace.
    for (int i = 0; i < 4; ++i) latency->Observe(sizes[size], *middle);
  }
  return absl::OkStatus();
}

}  // namespace espalier
