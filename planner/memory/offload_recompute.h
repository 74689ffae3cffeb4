// Memory planning: which tensors leave the device between two uses, and when they come back, so
// that a step fits a limit. They are copied to the host and back (TFLMS: Le et al., "TFLMS: Large
// model support in TensorFlow by graph rewriting", 2018) or computed again (Chen et al., "Training
// deep nets with sublinear memory cost", 2016); which of the two is decided tensor by tensor by
// what it adds to the step, as in Capuchin (Peng et al., ASPLOS 2020), here with both copy streams
// simulated.
//
// Pure functions of their arguments. Steps are the instructions of one device's program, in order.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace espalier {

// Memory that is given to one tensor for its life.
struct OffloadTensor {
  int64_t bytes = 0;
  std::vector<int> uses;   // steps that touch it, ascending; alive from the first to the last
  int last_write = 0;      // step
  bool can_swap = false;  // it can be copied to the host as a whole
  // The step that computes it, if it can be run again; reads the tensors `from`, and what it reads
  // is as it was for all steps before `inputs_valid_until`.
  int producer = -1;
  std::vector<int> from;
  int inputs_valid_until = std::numeric_limits<int>::max();
};

struct OffloadProblem {
  std::vector<double> seconds;  // by step
  std::vector<OffloadTensor> tensors;
  int64_t fixed_bytes = 0;  // in use all the time
  int64_t limit = 0;
};

// TFLMS's settings by TFLMS's names where it has one; 0 means: chosen here.
struct OffloadSettings {
  bool swap = true;
  bool recompute = true;
  int64_t host_bytes = 0;         // limit of what lies on the host; 0: none
  double host_bandwidth = 6e9;    // bytes/s, in each direction
  double host_latency = 1e-5;     // seconds of one copy
  int swapout_threshold = 0;      // uses that are at most so many steps apart: it stays
  int swapin_ahead = 0;           // the copy back starts so many steps before the use
  int swapin_groupby = 0;         // uses that are at most so many steps apart share one copy back
  bool wait_for_swapout = false;  // sync_mode 1 and 3: computation stops while a tensor leaves
  bool wait_for_swapin = false;   // sync_mode 2 and 3: likewise while it comes back
};

// Tensor `tensor` is away after step `after` until step `before`, its next use. Its memory serves
// others in steps [away, back): swapped out, `away` is when the copy should have ended, and the
// copy back starts in front of `back`. Recomputed, its producer runs once more in front of `before`
// (== back).
struct Eviction {
  int tensor = 0;
  int after = 0, before = 0;
  int away = 0, back = 0;
  bool recompute = false;
  bool copies_out = true;  // false: the host still has it from an earlier eviction
};

struct OffloadPlan {
  std::vector<Eviction> evictions;  // by `before`
  int64_t peak_bytes = 0;         // with fixed_bytes
  int64_t host_bytes = 0;
  double seconds = 0;  // of all steps, recomputation and waiting included
  // Empty if it fits; otherwise what stands in the way, with the step's number in `failing_step`.
  std::string problem;
  int failing_step = -1;
  std::vector<int> resident;  // tensors that are there in that step, the largest first
};

// Repeatable. Work grows with steps x tensors in the worst case, in practice far less.
OffloadPlan PlanOffload(const OffloadProblem& problem, const OffloadSettings& settings);

// What no plan can do without: `peak_bytes` is what the step that works on most works on, and
// `problem` says so if that alone is over the limit. Quick.
OffloadPlan LargestStep(const OffloadProblem& problem);

}  // namespace espalier
