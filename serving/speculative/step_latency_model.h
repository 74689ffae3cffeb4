// Latency model of a model's steps, learned online: seconds as a function of the number of rows,
// plus a price per position that a row attends to and one per position whose K and V are read. Rows
// of one tree read K and V together. The only assumption is monotonicity: kernels work in tiles, so
// the curve has steps, and speculation pays where it is flat.
//
// Steps with similar numbers of rows share a bucket. The curve is the isotonic regression of the
// buckets' times (pool adjacent violators, Ayer et al. 1955).
//
// On a shared machine everything is slower for seconds at a time. The pace, the median of recent
// times relative to the curve, separates this from changes of single sizes; the curve is kept at
// pace 1. It starts from a calibration; afterwards, sizes are compared by steps that are close in
// time.
//
// A size that was not run for long is forgotten if a size near it was run, so that a bad
// measurement does not exclude it for good.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "serving/runner/model_runner.h"

namespace espalier {

struct StepWork {
  int rows = 0;
  double visible = 0;  // positions that the rows see, summed over the rows
  double context = 0;  // positions of the sequences, each counted once
};

class StepLatencyModel {
 public:
  // Seconds per position, at pace 1.
  struct Rates {
    double visible = 0;
    double context = 0;
  };

  void Observe(const StepWork& work, double seconds);

  // 0 before the first observation. Between known sizes linear; beyond the largest, by the mean
  // slope.
  double Seconds(const StepWork& work) const;
  // Without the positions.
  double Seconds(int rows) const;
  double PositionSeconds(double visible, double context) const {
    return pace_ * (rates_.visible * visible + rates_.context * context);
  }

  // Whether steps of about so many rows were compared with others often enough of late: what they
  // are believed to take is not what the calibration's moment made of it.
  bool Proven(int rows) const;

  // What steps take against what they would at pace 1.
  double pace() const { return pace_; }
  // Steps that were not observed would take so many times as long as the last ones that were.
  void Slow(double times);

  const Rates& rates() const { return rates_; }
  void set_rates(const Rates& rates) { rates_ = rates; }

 private:
  static constexpr int kKept = 31;  // times per bucket
  static constexpr int kLast = 15;  // of them, that say whether the machine has become another
  static constexpr int kPaces = 9;
  struct Bucket {
    int number = 0;
    std::array<double, kKept> rows{}, seconds{};  // the last observations, a ring; at pace 1
    std::array<int64_t, kKept> when{};            // the number of each
    int64_t count = 0;                            // of all that were
    int64_t contrasts = 0;                        // with steps of other sizes
    double recent = 0;                            // observations; older ones count less
    int64_t recent_at = 0;                        // the number of the last one
    double middle_rows = 0, middle_seconds = 0;   // what is believed
    double drawn_rows = 0, drawn_seconds = 0;     // likewise, of which the curve knows
  };
  struct Pace {
    int bucket = 0;
    double value = 1;  // seconds of a step over what they would be at pace 1
  };
  struct Point {
    double rows, seconds;
  };
  struct Known {
    double rows, seconds, weight;
  };
  struct Pool {
    double least, most;  // rows
    double seconds, weight;
  };

  // A drafter asks after every level of a tree, so this must cost little beside a small model's
  // step.
  void Refresh() const;
  bool Fresh(const Bucket& bucket) const;
  bool Proven(const Bucket& bucket) const;
  double Recent(const Bucket& bucket) const;
  // Tells the pace what a step of such a size took. Returns the step's seconds at the pace of 1,
  // without those of its `positions`.
  double Paced(const Bucket& bucket, double seconds, double positions);
  double PaceOfOthers(int number) const;
  double CurveSeconds(int rows) const;
  void FindSizes() const;

  std::vector<Bucket> buckets_;  // that have been observed, by number
  int64_t observed_ = 0, drawn_at_ = 0;
  Rates rates_;
  std::array<Pace, kPaces> paces_;  // by the last steps of sizes that are known well, a ring
  int64_t paced_ = 0;
  double pace_ = 1;  // above 1 steps take longer than most did
  mutable bool stale_ = false;
  mutable std::vector<Known> known_;
  mutable std::vector<Pool> pools_;
  mutable std::vector<Point> curve_;  // rising in both
};

// Runs a few batches of growing size on a runner that serves no request yet, and tells `cost` what
// they took; then sets its rates, from many sequences with a past against as many without, and many
// rows of one. Ends early once `budget_seconds` are spent, and again as much. Writes KV slots,
// which are free by then. Errors of the runner.
absl::Status Calibrate(ModelRunner& runner, int max_rows, double budget_seconds,
                       const std::function<double()>& seconds, StepLatencyModel* cost);

}  // namespace espalier
