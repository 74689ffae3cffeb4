#include "ops/optimizer/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using Schedule = v1::LearningRateSchedule;

// From `from` at t = 0 to `to` at t = 1.
double HalfCosine(double from, double to, double t) {
  return to + (from - to) * (1.0 + std::cos(std::numbers::pi * t)) / 2.0;
}

double OneCycle(const Schedule& schedule, int64_t step) {
  const double rise = schedule.rise() == 0 ? 0.3 : schedule.rise();
  const double initial = schedule.initial() == 0 ? schedule.peak() / 25.0 : schedule.initial();
  const double last = static_cast<double>(schedule.total_steps()) - 1.0;
  const double top = rise * static_cast<double>(schedule.total_steps()) - 1.0;
  const double s = std::min(static_cast<double>(step), last);
  if (s <= top) return HalfCosine(initial, schedule.peak(), top > 0 ? s / top : 1.0);
  return HalfCosine(schedule.peak(), schedule.floor(), (s - top) / (last - top));
}

absl::Status BadSchedule(const char* field, double found, const char* accepted) {
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer.learning_rate.", field, " is ", found, "; accepted: ", accepted));
}

bool NotNegative(double value) { return std::isfinite(value) && value >= 0; }

absl::Status CheckTable(const Schedule& schedule) {
  const bool table = schedule.kind() == Schedule::TABLE;
  if (!table && schedule.values().empty()) return absl::OkStatus();
  constexpr int kMaxValues = 1 << 16;
  if (schedule.values_size() > (table ? kMaxValues : 0) || (table && schedule.values().empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer.learning_rate.values has ", schedule.values_size(),
                     " numbers; accepted: 1 to ", kMaxValues, " for TABLE, none for other kinds"));
  }
  if (schedule.warmup_steps() != 0) {
    return BadSchedule("warmup_steps", static_cast<double>(schedule.warmup_steps()),
                       "0 for TABLE, which has the rate of every step");
  }
  for (int i = 0; i < schedule.values_size(); ++i) {
    if (NotNegative(schedule.values(i))) continue;
    return BadSchedule(absl::StrCat("values[", i, "]").c_str(), schedule.values(i), "0 or more");
  }
  return absl::OkStatus();
}

}  // namespace

double LearningRate(const Schedule& schedule, int64_t step) {
  const double peak = schedule.peak(), floor = schedule.floor();
  if (schedule.kind() == Schedule::ONE_CYCLE) return OneCycle(schedule, step);
  if (schedule.kind() == Schedule::TABLE) {
    if (schedule.values().empty()) return 0;
    return schedule.values(static_cast<int>(std::min<int64_t>(step, schedule.values_size() - 1)));
  }
  if (step < schedule.warmup_steps()) {
    const double steps = static_cast<double>(schedule.warmup_steps());
    if (!schedule.has_warmup_from()) return peak * static_cast<double>(step + 1) / steps;
    const double from = schedule.warmup_from();
    return from + (peak - from) * static_cast<double>(step) / steps;
  }
  const int64_t s = step - schedule.warmup_steps();
  const double span =
      static_cast<double>(std::max<int64_t>(1, schedule.total_steps() - schedule.warmup_steps()));
  const double t = std::min(1.0, static_cast<double>(s) / span);
  switch (schedule.kind()) {
    case Schedule::COSINE:
      return HalfCosine(peak, floor, t);
    case Schedule::STEP:
      return std::max(
          floor, peak * std::pow(schedule.gamma(), static_cast<double>(s / schedule.step_size())));
    case Schedule::LINEAR:
      return peak + (floor - peak) * t;
    case Schedule::POLYNOMIAL:
      return floor + (peak - floor) * std::pow(1.0 - t, schedule.power());
    default:
      return peak;
  }
}

absl::Status CheckSchedule(const Schedule& schedule) {
  if (!Schedule::Kind_IsValid(schedule.kind())) {
    return BadSchedule("kind", schedule.kind(),
                       "CONSTANT, COSINE, STEP, LINEAR, POLYNOMIAL, ONE_CYCLE and TABLE");
  }
  if (!NotNegative(schedule.peak())) return BadSchedule("peak", schedule.peak(), "0 or more");
  if (!NotNegative(schedule.floor())) return BadSchedule("floor", schedule.floor(), "0 or more");
  if (!NotNegative(schedule.initial()))
    return BadSchedule("initial", schedule.initial(), "0 or more");
  if (schedule.warmup_steps() < 0) {
    return BadSchedule("warmup_steps", static_cast<double>(schedule.warmup_steps()), "0 or more");
  }
  if (schedule.total_steps() < 0) {
    return BadSchedule("total_steps", static_cast<double>(schedule.total_steps()), "0 or more");
  }
  if (schedule.kind() == Schedule::STEP) {
    if (schedule.step_size() < 1) {
      return BadSchedule("step_size", static_cast<double>(schedule.step_size()),
                         "1 or more for STEP");
    }
    if (!(schedule.gamma() > 0) || schedule.gamma() > 1) {
      return BadSchedule("gamma", schedule.gamma(), "above 0, at most 1, for STEP");
    }
  }
  if (schedule.kind() == Schedule::POLYNOMIAL &&
      (!std::isfinite(schedule.power()) || schedule.power() <= 0)) {
    return BadSchedule("power", schedule.power(), "above 0 for POLYNOMIAL");
  }
  if (schedule.kind() == Schedule::ONE_CYCLE) {
    if (!(schedule.rise() >= 0) || schedule.rise() >= 1) {
      return BadSchedule("rise", schedule.rise(), "0 (0.3) or more, below 1");
    }
    if (schedule.warmup_steps() != 0) {
      return BadSchedule("warmup_steps", static_cast<double>(schedule.warmup_steps()),
                         "0 for ONE_CYCLE, which rises by itself");
    }
  }
  if (schedule.has_warmup_from()) {
    if (!NotNegative(schedule.warmup_from())) {
      return BadSchedule("warmup_from", schedule.warmup_from(), "0 or more");
    }
    if (schedule.warmup_steps() == 0) {
      return BadSchedule("warmup_steps", 0, "1 or more with warmup_from");
    }
  }
  return CheckTable(schedule);
}

}  // namespace espalier
