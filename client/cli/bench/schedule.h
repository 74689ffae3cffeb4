// Arrival times of a load test's requests, and the threads that run them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

// Returns the scheduled start of each of `count` requests, in seconds from the beginning,
// ascending. Gaps follow a gamma distribution of mean 1 / `rate` and shape `burstiness`: 1 is a
// Poisson process, smaller values are burstier, larger ones more regular. If `rate` is 0, all start
// at once.
std::vector<double> Arrivals(int64_t count, double rate, double burstiness, uint64_t seed);

struct ScheduleResult {
  int64_t max_concurrent = 0;
  double seconds = 0;  // until the last request ended
};

// Runs `work(i, due)` for every arrival on its own thread, not before `due` on the clock `seconds`,
// and blocks until all are done. At most `most` run at once; further ones wait in order of arrival.
// Returns ResourceExhausted if not even one thread can be started.
absl::StatusOr<ScheduleResult> RunSchedule(const std::vector<double>& arrivals, int64_t most,
                                           const std::function<double()>& seconds,
                                           const std::function<void(int64_t, double)>& work);

}  // namespace espalier
