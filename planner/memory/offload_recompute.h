// Memory planning: chooses tensors to evict between two uses so that a step fits a memory limit. A
// tensor is swapped to the host and back (TFLMS: Le et al., "TFLMS: Large model support in
// TensorFlow by graph rewriting", 2018) or recomputed (activation checkpointing: Chen et al.,
// "Training deep nets with sublinear memory cost", 2016). The choice is made per tensor by the time
// that it adds to the step, as in Capuchin (Peng et al., ASPLOS 2020), with both copy streams
// simulated.
//
// Pure functions. Steps are the instructions of one device's program, in order.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace espalier {

// One tensor's memory over its lifetime.
struct OffloadTensor {
  int64_t bytes = 0;
  std::vector<int> uses;  // steps that touch it, ascending; alive from the first to the last
  int last_write = 0;     // step
  bool can_swap = false;  // it can be copied to the host as a whole
  // The step that computes it, if it can run again (-1: it cannot). It reads the tensors `from`;
  // its inputs have the same contents for all steps before `inputs_valid_until`.
  int producer = -1;
  std::vector<int> from;
  int inputs_valid_until = std::numeric_limits<int>::max();
};

struct OffloadProblem {
  std::vector<double> seconds;  // by step
  std::vector<OffloadTensor> tensors;
  int64_t fixed_bytes = 0;  // in use throughout
  int64_t limit = 0;
};

// TFLMS's settings under TFLMS's names; 0: chosen by the planner.
struct OffloadSettings {
  bool swap = true;
  bool recompute = true;
  int64_t host_bytes = 0;         // limit of host memory; 0: none
  double host_bandwidth = 6e9;    // bytes/s, in each direction
  double host_latency = 1e-5;     // seconds of one copy
  int swapout_threshold = 0;      // a tensor stays between uses at most this many steps apart
  int swapin_ahead = 0;           // steps by which the copy back precedes the use
  int swapin_groupby = 0;         // uses at most this many steps apart share one copy back
  bool wait_for_swapout = false;  // sync_mode 1 and 3: computation waits for the copy to the host
  bool wait_for_swapin = false;   // sync_mode 2 and 3: computation waits for the copy back
};

// Tensor `tensor` is evicted after step `after` until step `before`, its next use. Its memory is
// free in steps [away, back). Swapped: `away` is when the copy out should have ended, and the copy
// back starts before `back`. Recomputed: its producer runs again before `before` (== back).
struct Eviction {
  int tensor = 0;
  int after = 0, before = 0;
  int away = 0, back = 0;
  bool recompute = false;
  bool copies_out = true;  // false: the host still has a copy from an earlier eviction
};

struct OffloadPlan {
  std::vector<Eviction> evictions;  // by `before`
  int64_t peak_bytes = 0;           // including fixed_bytes
  int64_t host_bytes = 0;
  double seconds = 0;  // of all steps, including recomputation and waiting
  // Empty if the step fits; otherwise what prevents it, with the step in `failing_step`.
  std::string problem;
  int failing_step = -1;
  std::vector<int> resident;  // tensors resident in that step, largest first
};

// Deterministic. Worst case O(steps x tensors), in practice far less.
OffloadPlan PlanOffload(const OffloadProblem& problem, const OffloadSettings& settings);

// Returns the lower bound over all plans: `peak_bytes` is the largest working set of any step;
// `problem` is set if that alone exceeds the limit. Fast.
OffloadPlan LargestStep(const OffloadProblem& problem);

}  // namespace espalier
