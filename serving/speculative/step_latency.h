// Latency of a model's steps by their number of rows, learned online: exponential averages in
// buckets of similar sizes, pooled so that larger steps never seem faster (isotonic regression by
// pool adjacent violators, Ayer et al. 1955).
//
// Whatever slows all sizes alike, such as other processes and longer contexts, goes into one
// factor, the pace, which follows within some steps; sizes that are not run keep their ratio to the
// others. A size that was run a few times only, perhaps in a bad moment, is believed to take at
// most as long as its rows in batches of a size that is known well.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "serving/runner/model_runner.h"

namespace espalier {

class StepLatency {
 public:
  void Observe(int rows, double seconds);

  // Returns the expected seconds of a step: linear between known sizes, proportional beyond the
  // largest. 0 before the first observation.
  double Seconds(double rows) const;
  double Seconds(int rows) const;

 private:
  static constexpr int kExact = 16;  // sizes up to here have buckets of their own
  static constexpr int kPerOctave = 8;
  static constexpr int kBuckets = kExact + 10 * kPerOctave;
  struct Bucket {
    double rows = 0, seconds = 0;  // averages; seconds at pace 1
    int64_t count = 0;
  };
  struct Point {
    double rows, seconds;
  };
  static int BucketOf(int rows);
  void Pool();

  std::array<Bucket, kBuckets> buckets_;
  double pace_ = 1;
  std::vector<Point> curve_;           // rising in both
  mutable std::vector<double> table_;  // seconds by rows, as far as asked; -1: not asked yet
};

// Times batches of growing size on a runner that serves no request yet, for about `budget_seconds`,
// and reports them to `latency`. Overwrites KV slots, which must be free. Returns the runner's
// errors.
absl::Status Calibrate(ModelRunner& runner, int max_rows, double budget_seconds,
                       const std::function<double()>& seconds, StepLatency* latency);

}  // namespace espalier
