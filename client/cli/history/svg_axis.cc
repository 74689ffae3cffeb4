#include "client/cli/history/svg_axis.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace espalier {
namespace {

constexpr double kLogarithmicFrom = 1000;  // largest value by the smallest
constexpr double kSmallestRange = 1e-290;  // quotients of smaller ones lose their bits

// 1, 2 or 5 times a power of ten, at least `least`.
double RoundStep(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

}  // namespace

Axis::Axis(double low, double high, double from, double to, bool may_be_logarithmic)
    : low_(low), high_(high), from_(from), to_(to) {
  logarithmic_ = may_be_logarithmic && low > 0 && high / low >= kLogarithmicFrom;
  if (logarithmic_) return;
  // Ranges that doubles hardly resolve are drawn as flat.
  const double size = std::max(std::abs(low), std::abs(high));
  if (high - low <= std::max(size * 1e-12, kSmallestRange)) {
    const double margin = size <= kSmallestRange ? 1 : size * 0.1;
    low_ -= margin;
    high_ += margin;
  }
}

double Axis::At(double value) const {
  const double part = logarithmic_
                          ? (std::log(value) - std::log(low_)) / (std::log(high_) - std::log(low_))
                          : (value / 2 - low_ / 2) / (high_ / 2 - low_ / 2);  // no overflow
  return from_ + part * (to_ - from_);
}

std::vector<std::pair<double, std::string>> Axis::Ticks(int about) const {
  std::vector<std::pair<double, std::string>> ticks;
  const auto add = [&](double value) { ticks.emplace_back(value, absl::StrFormat("%.6g", value)); };
  if (logarithmic_) {
    const double first = std::ceil(std::log10(low_) - 1e-9);
    const double last = std::floor(std::log10(high_) + 1e-9);
    const double step = std::max(1.0, std::ceil((last - first) / about));
    for (double power = first; power <= last; power += step) add(std::pow(10, power));
    return ticks;
  }
  const double step = RoundStep((high_ / 2 - low_ / 2) / about * 2);
  if (!std::isfinite(step) || step <= 0) return ticks;
  const double first = std::ceil(low_ / step - 1e-9);
  for (int i = 0; i <= 2 * about + 2; ++i) {
    const double value = (first + i) * step;
    if (!std::isfinite(value) || value > high_ + step * 1e-9) break;
    add(value == 0 ? 0 : value);  // not -0
  }
  return ticks;
}

}  // namespace espalier
