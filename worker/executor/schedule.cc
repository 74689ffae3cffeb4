#include "worker/executor/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

absl::Status Bad(const char* field, double found, const char* accepted) {
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer.", field, " is ", found, "; accepted: ", accepted));
}

}  // namespace

double LearningRate(const proto::LearningRateSchedule& schedule, int64_t step) {
  if (schedule.kind() != proto::LearningRateSchedule::COSINE) return schedule.peak();
  if (step < schedule.warmup_steps()) {
    return schedule.peak() * static_cast<double>(step + 1) /
           static_cast<double>(schedule.warmup_steps());
  }
  const double span =
      static_cast<double>(std::max<int64_t>(1, schedule.total_steps() - schedule.warmup_steps()));
  const double t = std::min(1.0, static_cast<double>(step - schedule.warmup_steps()) / span);
  return schedule.floor() +
         (schedule.peak() - schedule.floor()) * (1.0 + std::cos(std::numbers::pi * t)) / 2.0;
}

absl::Status CheckOptimizer(const proto::Optimizer& o) {
  const proto::LearningRateSchedule& rate = o.learning_rate();
  auto not_negative = [](double v) { return std::isfinite(v) && v >= 0; };
  if (!not_negative(rate.peak())) return Bad("learning_rate.peak", rate.peak(), "0 or more");
  if (!not_negative(rate.floor())) return Bad("learning_rate.floor", rate.floor(), "0 or more");
  if (rate.warmup_steps() < 0) {
    return Bad("learning_rate.warmup_steps", static_cast<double>(rate.warmup_steps()), "0 or more");
  }
  if (!not_negative(o.weight_decay())) return Bad("weight_decay", o.weight_decay(), "0 or more");
  if (!not_negative(o.clip_norm())) return Bad("clip_norm", o.clip_norm(), "0 (off) or more");
  if (!not_negative(o.momentum()) || o.momentum() >= 1)
    return Bad("momentum", o.momentum(), "[0, 1)");
  if (!not_negative(o.beta1()) || o.beta1() >= 1) return Bad("beta1", o.beta1(), "[0, 1)");
  if (!not_negative(o.beta2()) || o.beta2() >= 1) return Bad("beta2", o.beta2(), "[0, 1)");
  if (!not_negative(o.epsilon())) return Bad("epsilon", o.epsilon(), "0 (1e-8) or more");
  return absl::OkStatus();
}

}  // namespace espalier
