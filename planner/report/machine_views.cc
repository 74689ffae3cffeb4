#include "planner/report/machine_views.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace espalier {

int ViewTable::Index(std::vector<int> devices) {
  std::sort(devices.begin(), devices.end());
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  const auto [it, inserted] = index_.try_emplace(std::move(devices), static_cast<int>(size()));
  if (inserted) views_.push_back(it->first);
  return it->second;
}

std::string Hue(int index) {
  // Multiples of the golden angle never repeat, and each splits the largest gap.
  constexpr double kGoldenAngle = 137.50776405003785;
  return absl::StrFormat("%.4f", std::fmod(210 + index * kGoldenAngle, 360.0));
}

}  // namespace espalier
