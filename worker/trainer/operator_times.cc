#include "worker/trainer/operator_times.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace espalier {

v1::OperatorTimes MedianStepTimes(const std::vector<std::vector<InstructionTime>>& profiles) {
  std::vector<std::pair<double, size_t>> sums;
  for (size_t p = 0; p < profiles.size(); ++p) {
    double sum = 0;
    for (const InstructionTime& time : profiles[p]) sum += time.seconds;
    sums.emplace_back(sum, p);
  }
  std::sort(sums.begin(), sums.end());
  std::map<std::pair<std::string, std::string>, std::pair<double, int>> times;
  for (const InstructionTime& time : profiles[sums[sums.size() / 2].second]) {
    auto& [seconds, count] = times[{time.node, time.op}];
    seconds += time.seconds;
    ++count;
  }
  v1::OperatorTimes out;
  for (const auto& [key, time] : times) {
    v1::OperatorTimes::Entry* entry = out.add_entries();
    entry->set_node(key.first);
    entry->set_op(key.second);
    entry->set_seconds(time.first / time.second);
    entry->set_count(time.second);
  }
  return out;
}

}  // namespace espalier
