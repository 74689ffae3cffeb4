// What a step of a model costs, learned from the steps themselves: seconds as a function of the
// batch's rows, and a price per position that its rows see. No shape is assumed but that more rows
// never cost less: kernels work in blocks, so the curve has stairs, and speculation pays exactly
// where they are flat.
//
// Steps of about the same number of rows share a bucket, which keeps the last few times; the median
// of each, made monotone by pooling neighbours that are out of order (isotonic regression, Ayer et
// al. 1955), is the curve. A step that was interrupted therefore changes nothing, and a machine
// that has become slower is known after a handful of steps.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "serving/engine/model_runner.h"

namespace espalier {

class StepCost {
 public:
  StepCost();

  // `visible`: positions that the rows see, summed over the rows.
  void Observe(int rows, int64_t visible, double seconds);

  // 0 before the first observation. Between known sizes linear; beyond the largest, by the mean
  // slope.
  double Seconds(int rows, int64_t visible) const;
  // Without the positions: enough to compare batches of the same requests.
  double Seconds(int rows) const;

  double seconds_per_position() const { return per_position_; }
  void set_seconds_per_position(double seconds) { per_position_ = seconds; }

 private:
  struct Bucket {
    std::vector<double> rows, seconds;  // the last kKept observations, a ring
    int64_t next = 0;
  };
  struct Point {
    double rows, seconds, weight;
  };

  static int BucketOf(int rows);
  void Refresh() const;

  std::vector<Bucket> buckets_;
  double per_position_ = 0;
  mutable bool stale_ = false;
  mutable std::vector<Point> curve_;  // rising in both
};

// Runs a few batches of growing size on a runner that serves no request yet, and tells `cost` what
// they took; ends early once `budget_seconds` are spent. Writes KV slots, which are free by then.
// Errors of the runner.
absl::Status Calibrate(ModelRunner& runner, int max_rows, double budget_seconds,
                       const std::function<double()>& seconds, StepCost* cost);

}  // namespace espalier
