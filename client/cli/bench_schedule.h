// When the requests of a load begin, and the threads that run them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

// When each of `count` requests is due, in seconds from the start, ascending. The gaps between them
// follow a gamma distribution of mean 1 / `rate` and shape `burstiness`: 1 is a Poisson process,
// less comes in bursts, more is more even. A `rate` of 0: all at once.
std::vector<double> Arrivals(int64_t count, double rate, double burstiness, uint64_t seed);

struct ScheduleResult {
  int64_t max_concurrent = 0;
  double seconds = 0;  // until the last one was over
};

// Runs `work(i, due)` for every arrival on a thread of its own, not before it is due on the clock
// `seconds`, and blocks until all are over. `due` is on that clock. At most `most` run at once: one
// that finds no room waits for it, in order of arrival. ResourceExhausted if not even one thread
// can be had.
absl::StatusOr<ScheduleResult> RunSchedule(const std::vector<double>& arrivals, int64_t most,
                                           const std::function<double()>& seconds,
                                           const std::function<void(int64_t, double)>& work);

}  // namespace espalier
