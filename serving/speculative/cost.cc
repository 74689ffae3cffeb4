#include "serving/speculative/cost.h"

#include <algorithm>
#include <cmath>

namespace espalier {
namespace {

constexpr int kKept = 7;        // times per bucket
constexpr int kExact = 32;      // up to here each number of rows has its own bucket
constexpr int kPerOctave = 16;  // beyond, buckets per doubling
constexpr int kBuckets = kExact + kPerOctave * 24;
constexpr int kRepeats = 3;    // of each calibration batch
constexpr int kContext = 512;  // positions of the calibration's long sequence

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size()) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Rows `first` .. `first + count` of one sequence, or (apart) the first rows of `count` sequences.
RunnerBatch CalibrationBatch(int first, int count, bool apart) {
  RunnerBatch batch;
  batch.sequence_start.push_back(0);
  batch.ancestor_start.push_back(0);
  for (int i = 0; i < count; ++i) {
    batch.tokens.push_back(0);
    batch.positions.push_back(apart ? 0 : first + i);
    batch.slots.push_back(first + i);
    batch.row_sequence.push_back(apart ? i : 0);
    batch.row_prefix.push_back(apart ? 1 : first + i + 1);
    batch.ancestor_start.push_back(0);
    batch.logit_rows.push_back(i);
    if (apart) {
      batch.sequence_slots.push_back(first + i);
      batch.sequence_start.push_back(i + 1);
    }
  }
  if (!apart) {
    for (int i = 0; i < first + count; ++i) batch.sequence_slots.push_back(i);
    batch.sequence_start.push_back(first + count);
  }
  return batch;
}

}  // namespace

StepCost::StepCost() : buckets_(kBuckets) {}

int StepCost::BucketOf(int rows) {
  if (rows <= kExact) return std::max(rows, 1) - 1;
  const int bucket =
      kExact + static_cast<int>(kPerOctave * std::log2(static_cast<double>(rows) / kExact));
  return std::min(bucket, kBuckets - 1);
}

void StepCost::Observe(int rows, int64_t visible, double seconds) {
  Bucket& bucket = buckets_[BucketOf(rows)];
  const double own = std::max(0.0, seconds - per_position_ * static_cast<double>(visible));
  if (bucket.rows.size() < kKept) {
    bucket.rows.push_back(rows);
    bucket.seconds.push_back(own);
  } else {
    bucket.rows[bucket.next % kKept] = rows;
    bucket.seconds[bucket.next % kKept] = own;
  }
  ++bucket.next;
  stale_ = true;
}

void StepCost::Refresh() const {
  stale_ = false;
  curve_.clear();
  for (const Bucket& bucket : buckets_) {
    if (bucket.rows.empty()) continue;
    Point point{Median(bucket.rows), Median(bucket.seconds),
                static_cast<double>(bucket.rows.size())};
    // A smaller batch that seems to cost more is pooled with this one: both have their mean.
    std::vector<double> pooled = {point.rows};
    while (!curve_.empty() && curve_.back().seconds > point.seconds) {
      const Point& last = curve_.back();
      const double weight = last.weight + point.weight;
      point.seconds = (last.seconds * last.weight + point.seconds * point.weight) / weight;
      point.weight = weight;
      pooled.push_back(last.rows);
      curve_.pop_back();
    }
    // One point at each end of the pool keeps it flat between them.
    const auto [least, most] = std::minmax_element(pooled.begin(), pooled.end());
    if (*least < *most) {
      curve_.push_back({*least, point.seconds, point.weight / 2});
      point.weight /= 2;
    }
    point.rows = *most;
    curve_.push_back(point);
  }
}

double StepCost::Seconds(int rows) const {
  if (stale_) Refresh();
  if (curve_.empty()) return 0;
  const double x = rows;
  const auto above = std::lower_bound(curve_.begin(), curve_.end(), x,
                                      [](const Point& point, double r) { return point.rows < r; });
  if (above == curve_.begin()) return above->seconds;
  const Point& low = *(above - 1);
  if (above != curve_.end()) {
    const double share = (x - low.rows) / (above->rows - low.rows);
    return low.seconds + share * (above->seconds - low.seconds);
  }
  const Point& first = curve_.front();
  const double slope = low.rows > first.rows
                           ? (low.seconds - first.seconds) / (low.rows - first.rows)
                           : low.seconds / low.rows;
  return low.seconds + slope * (x - low.rows);
}

double StepCost::Seconds(int rows, int64_t visible) const {
  return Seconds(rows) + per_position_ * static_cast<double>(visible);
}

absl::Status Calibrate(ModelRunner& runner, int max_rows, double budget_seconds,
                       const std::function<double()>& seconds, StepCost* cost) {
  const RunnerLimits limits = runner.limits();
  const double begin = seconds();
  RunnerLogits logits;
  const auto time = [&](const RunnerBatch& batch, double* took) {
    const double start = seconds();
    absl::Status status = runner.Step(batch, &logits);
    *took = seconds() - start;
    return status;
  };
  double took = 0;
  // The first step of all allocates and reads weights from disk.
  if (absl::Status s = time(CalibrationBatch(0, 1, true), &took); !s.ok()) return s;

  const int most = std::min({max_rows, limits.max_rows, limits.kv_slots, limits.max_context_slots});
  const int apart = std::min(most, limits.max_sequences);
  // Doublings first, so that a small budget still spans the range; then what lies between: every
  // size that has a bucket of its own and steps of a quarter.
  std::vector<int> sizes;
  for (int rows = 1; rows <= most; rows *= 2) sizes.push_back(rows);
  for (int rows = 3; rows <= most; rows += rows < 32 ? 1 : rows / 4) {
    if ((rows & (rows - 1)) != 0) sizes.push_back(rows);
  }
  for (const int rows : sizes) {
    const RunnerBatch batch =
        rows <= apart ? CalibrationBatch(0, rows, true)
                      : CalibrationBatch(0, std::min(rows, limits.max_positions), false);
    for (int i = 0; i < kRepeats; ++i) {
      if (absl::Status s = time(batch, &took); !s.ok()) return s;
      cost->Observe(batch.rows(), 0, took);
    }
    if (seconds() - begin > budget_seconds) break;
  }

  // One row that sees a long sequence, against one that sees itself.
  const int context =
      std::min({kContext, limits.kv_slots, limits.max_context_slots, limits.max_positions});
  int computed = 0;
  while (computed + 1 < context) {
    const int rows = std::min(most, context - 1 - computed);
    if (absl::Status s = time(CalibrationBatch(computed, rows, false), &took); !s.ok()) return s;
    computed += rows;
    if (seconds() - begin > 2 * budget_seconds) return absl::OkStatus();
  }
  std::vector<double> extra;
  for (int i = 0; i < 5; ++i) {
    double near = 0, far = 0;
    if (absl::Status s = time(CalibrationBatch(0, 1, true), &near); !s.ok()) return s;
    // The short one wrote slot 0 as it was: the first token of the sequence.
    if (absl::Status s = time(CalibrationBatch(computed, 1, false), &far); !s.ok()) return s;
    extra.push_back((far - near) / std::max(1, computed));
  }
  if (computed >= 64) cost->set_seconds_per_position(std::max(0.0, Median(extra)));
  return absl::OkStatus();
}

}  // namespace espalier
