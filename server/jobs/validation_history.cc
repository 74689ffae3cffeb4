#include "server/jobs/validation_history.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {

std::string ValidationHistory::Monitor() const {
  return rule_.monitor().empty() ? kDefaultMonitor : rule_.monitor();
}

double ValidationHistory::Monitored(const v1::StepReport& report) const {
  const auto value = report.values().find(Monitor());
  return value == report.values().end() ? std::numeric_limits<double>::quiet_NaN() : value->second;
}

bool ValidationHistory::IsImprovement(double value, double reference) const {
  return rule_.mode() == v1::EarlyStopping::MAX ? value - rule_.min_delta() > reference
                                                : value + rule_.min_delta() < reference;
}

void ValidationHistory::Judge(int64_t index) {
  const double value = Monitored(reports_[static_cast<size_t>(index)]);
  ++waited_;
  if (best_ < 0 ? !std::isnan(value) : IsImprovement(value, Monitored(*best()))) {
    best_ = index;
    if (!rule_.has_baseline() || IsImprovement(value, rule_.baseline())) waited_ = 0;
    return;
  }
  stop_ = stop_ || (rule_.patience() > 0 && waited_ >= rule_.patience());
}

void ValidationHistory::Add(const v1::StepReport& validation) {
  reports_.push_back(validation);
  Judge(static_cast<int64_t>(reports_.size()) - 1);
}

void ValidationHistory::DropFrom(int64_t step) {
  if (reports_.empty() || reports_.back().step() < step) return;
  std::vector<v1::StepReport> kept = std::move(reports_);
  reports_.clear();
  best_ = -1;
  waited_ = 0;
  stop_ = false;
  for (const v1::StepReport& report : kept) {
    if (report.step() < step) Add(report);
  }
}

std::string ValidationHistory::StopReason() const {
  return absl::StrCat(Monitor(), " has not improved in ", waited_,
                      waited_ == 1 ? " validation" : " validations",
                      best_ < 0 || rule_.has_baseline()
                          ? ""
                          : absl::StrCat(" since the one after ", best_steps(), " steps"));
}

}  // namespace espalier
