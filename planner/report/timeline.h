// The timeline of a simulated step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace espalier {

// A task of one device, or one device's part in a transfer or collective.
struct TimelineTask {
  enum Kind { kForward, kBackward, kReshard, kGradientSync, kUpdate };
  Kind kind = kForward;
  int device = 0;
  double begin = 0, end = 0;  // seconds from the start of the step
  bool communicates = false;  // with other devices
  double bytes = 0;           // sent or received by this task, all devices together
  std::string node;           // of the plan; of a reshard: the consumer
};

// Bytes that one directed link of the machine carries in a step.
struct LinkTraffic {
  std::string name;  // "host0 -> spine"
  double bytes = 0;
  double bandwidth = 0;  // bytes/s
};

// Estimated bytes in use on one device, as a step function: `bytes[i]` from `seconds[i]` on.
struct MemoryCurve {
  int64_t limit = 0;  // 0: unknown
  std::vector<double> seconds;
  std::vector<int64_t> bytes;
};

struct Timeline {
  double seconds = 0;               // of the whole step
  std::vector<TimelineTask> tasks;  // by begin
  std::vector<LinkTraffic> links;
  std::vector<MemoryCurve> memory;  // by device
};

}  // namespace espalier
