#include "serving/speculative/step_latency.h"

#include <algorithm>
#include <cmath>

namespace espalier {
namespace {

constexpr double kLatencyMemory = 32;   // steps of one size
constexpr double kPaceMemory = 16;      // steps
constexpr int kTellsPace = 4;           // steps of a size after which it tells the pace
constexpr int kProven = 16;             // steps of a size after which its time is not doubted
constexpr double kInterruptedStep = 2;  // a step that took longer than so many times the expected

}  // namespace

int StepLatency::BucketOf(int rows) {
  if (rows <= kExact) return std::max(rows, 1) - 1;
  const double octaves = std::log2(static_cast<double>(rows) / kExact);
  return std::min(kExact + static_cast<int>(octaves * kPerOctave), kBuckets - 1);
}

void StepLatency::Observe(int rows, double seconds) {
  Bucket& bucket = buckets_[BucketOf(rows)];
  if (bucket.count >= kTellsPace) {
    const double expected = pace_ * bucket.seconds;
    seconds = std::clamp(seconds, expected / kInterruptedStep, expected * kInterruptedStep);
    pace_ *= 1 + (seconds / expected - 1) / kPaceMemory;
  }
  const double weight = 1 / std::min(static_cast<double>(++bucket.count), kLatencyMemory);
  bucket.rows += weight * (rows - bucket.rows);
  bucket.seconds += weight * (seconds / pace_ - bucket.seconds);
  Pool();
}

void StepLatency::Pool() {
  struct Run {
    double least, most;  // rows
    double seconds, weight;
  };
  std::array<Run, kBuckets> runs;
  size_t count = 0;
  const Bucket* proven = nullptr;  // the largest one so far
  for (const Bucket& bucket : buckets_) {
    if (bucket.count == 0) continue;
    double seconds = bucket.seconds;
    if (bucket.count >= kProven) {
      proven = &bucket;
    } else if (proven != nullptr) {
      seconds = std::min(seconds, proven->seconds * bucket.rows / proven->rows);
    }
    Run run{bucket.rows, bucket.rows, seconds,
            std::min(static_cast<double>(bucket.count), kLatencyMemory)};
    while (count > 0 && runs[count - 1].seconds >= run.seconds) {
      const Run& below = runs[--count];
      const double weight = below.weight + run.weight;
      run = {below.least, run.most,
             (below.seconds * below.weight + run.seconds * run.weight) / weight, weight};
    }
    runs[count++] = run;
  }
  curve_.clear();
  table_.assign(table_.size(), -1);
  for (size_t i = 0; i < count; ++i) {
    curve_.push_back({runs[i].least, runs[i].seconds});
    if (runs[i].most > runs[i].least) curve_.push_back({runs[i].most, runs[i].seconds});
  }
}

double StepLatency::Seconds(double rows) const {
  if (curve_.empty()) return 0;
  if (rows <= curve_.front().rows) return pace_ * curve_.front().seconds;
  const Point& last = curve_.back();
  if (rows >= last.rows) return pace_ * last.seconds * rows / last.rows;
  const auto above = std::upper_bound(curve_.begin(), curve_.end(), rows,
                                      [](double r, const Point& point) { return r < point.rows; });
  const Point &low = *(above - 1), &high = *above;
  const double share = (rows - low.rows) / (high.rows - low.rows);
  return pace_ * (low.seconds + share * (high.seconds - low.seconds));
}

double StepLatency::Seconds(int rows) const {
  const auto at = static_cast<size_t>(rows);
  if (at >= table_.size()) table_.resize(at + 1, -1);
  if (table_[at] < 0) table_[at] = Seconds(static_cast<double>(rows));
  return table_[at];
}

}  // namespace espalier
