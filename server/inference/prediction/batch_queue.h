// Decides which examples of waiting requests run as one pass, and when. Reads no clock.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"

namespace espalier {

struct BatchPolicy {
  int64_t max_batch = 1;     // examples of a pass
  absl::Duration max_delay;  // how long a request waits for others that fill its pass
};

class BatchQueue {
 public:
  explicit BatchQueue(const BatchPolicy& policy) : policy_(policy) {}

  // Some examples of a request.
  struct Part {
    uint64_t request = 0;
    int64_t first = 0;
    int64_t examples = 0;
  };

  // REQUIRES: examples > 0; `now` does not go back.
  void Add(uint64_t request, int64_t examples, absl::Time now);
  // Drops what of a request has not been taken.
  void Remove(uint64_t request);
  // When the next pass is to begin: once it is full, or its first request has waited for max_delay.
  // InfiniteFuture without requests.
  absl::Time Due() const;
  // Takes the examples of a pass, in the order of arrival: at most max_batch. A larger request goes
  // on with the next pass. Empty before Due.
  std::vector<Part> Take(absl::Time now);

  int64_t examples() const { return examples_; }  // that wait

 private:
  struct Waiting {
    uint64_t request = 0;
    int64_t first = 0;
    int64_t examples = 0;  // left
    absl::Time arrival;
  };

  const BatchPolicy policy_;
  std::deque<Waiting> waiting_;
  int64_t examples_ = 0;
};

}  // namespace espalier
