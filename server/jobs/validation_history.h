// The validations of a job: which is the best so far, and whether training is to stop. A pure
// function of the reports and of the job's EarlyStopping, so that it is the same after a recovery.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "espalier/v1/training.pb.h"

namespace espalier {

// Of validations that have no EarlyStopping.
inline constexpr char kDefaultMonitor[] = "val_loss";
inline constexpr char kValidationPrefix[] = "val_";

class ValidationHistory {
 public:
  ValidationHistory() = default;
  // REQUIRES: the rule's mode is not AUTO, unless it is a default instance, for which the smallest
  // val_loss is the best and training never stops.
  explicit ValidationHistory(v1::EarlyStopping rule) : rule_(std::move(rule)) {}

  // Adds a validation after a later step than those before it. NaN improves nothing.
  void Add(const v1::StepReport& validation);
  // Forgets those after step `step` and later ones.
  void DropFrom(int64_t step);

  const std::vector<v1::StepReport>& reports() const { return reports_; }
  bool HasStep(int64_t step) const { return !reports_.empty() && reports_.back().step() == step; }
  // Null if no validation has a number for the monitored value.
  const v1::StepReport* best() const {
    return best_ < 0 ? nullptr : &reports_[static_cast<size_t>(best_)];
  }
  // Steps done at the best validation; 0: there is none.
  int64_t best_steps() const { return best_ < 0 ? 0 : best()->step() + 1; }
  // The same if its model is to be kept, else 0.
  int64_t kept_steps() const { return rule_.keep_best() ? best_steps() : 0; }
  bool stop() const { return stop_; }
  // Why it is to stop: "val_loss has not improved in 3 validations since the one after
  // 40 steps".
  std::string StopReason() const;

 private:
  void Judge(int64_t index);
  // Whether `value` is better than `reference` by more than min_delta.
  bool IsImprovement(double value, double reference) const;
  std::string Monitor() const;
  double Monitored(const v1::StepReport& report) const;

  v1::EarlyStopping rule_;
  std::vector<v1::StepReport> reports_;
  int64_t best_ = -1;   // index
  int64_t waited_ = 0;  // validations without improvement
  bool stop_ = false;
};

}  // namespace espalier
