// Draft policy: which drafts pay, by goodput, the expected tokens per second of a whole batch
// (SmartSpec, Liu et al. 2024). An LLM step yields one token per request for sure; a tree adds
// rows, which take time, and expected tokens, the acceptance chances of its nodes. Two choices:
// - Before drafting: whether an SSM drafts, for which requests, and how large (ChooseDraftTier).
// - When candidates and their chances are known: how many of them the LLM verifies, the most
//   probable first across requests (ChooseNodes).
//
// A node's chance is that of its whole path, so it never exceeds its parent's, and the best n nodes
// are the n most probable ones. Prompt rows in the same step are work that has to be done anyway:
// only what a tree adds counts against it.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "serving/speculative/acceptance_estimator.h"
#include "serving/speculative/step_latency.h"

namespace espalier {

// A step before anything more is drafted.
struct StepLoad {
  int decoding = 0;     // requests that yield at least one token
  int other_rows = 0;   // of prompts
  int nodes = 0;        // of existing trees
  double gain = 0;      // expected tokens of these
  double drafting = 0;  // seconds spent on these, and by the host on the step
};

// Seconds of the step with `nodes` tree rows, without the prompts' share.
double StepSeconds(const StepLoad& load, const StepLatency& llm, int nodes);
// Expected tokens per second of the step as it is.
double Goodput(const StepLoad& load, const StepLatency& llm);

// The trees that an SSM is expected to draft for one request: the most probable nodes, by their
// depth and rank (Sequoia's positional model, Chen et al. 2024), of a few depths and sizes.
class DraftShapes {
 public:
  struct Shape {
    int nodes = 0;
    double gain = 0;        // expected tokens
    std::vector<int> rows;  // of each run of the SSM, the root's first
  };
  DraftShapes() = default;
  DraftShapes(const AcceptanceEstimator& acceptance, int depth, int nodes, int ranks);
  const std::vector<Shape>& shapes() const { return shapes_; }

 private:
  std::vector<Shape> shapes_;
};

// Requests that an SSM can draft for.
struct DraftGroup {
  int requests = 0;
  double acceptance = 0;    // sum of their acceptances relative to the average
  double prefill_rows = 0;  // SSM rows that drafting for them adds to an average step
};

// How one SSM drafts in a step.
struct DraftTier {
  int requests = 0;    // 0: it does not draft
  int nodes = 0;       // expected per request
  double rate = 0;     // expected tokens per second of the step
  double gain = 0;     // expected tokens of all its trees
  double seconds = 0;  // of drafting
  double price = 0;    // of a row of the trees: expected tokens that its time would yield otherwise
};

struct DraftCosts {
  const StepLatency& llm;
  const StepLatency& ssm;
  double overhead = 1;  // drafting time over the time of the SSM's steps
  int max_rows = 0;     // of an LLM step
};

// Returns the tier with the highest rate; without requests, and with the rate of the load alone, if
// none is better than `least_gain` times that.
DraftTier ChooseDraftTier(const StepLoad& load, const DraftCosts& costs, const DraftShapes& shapes,
                          absl::Span<const DraftGroup> groups, double least_gain);

// Returns how many leading candidates to verify; chances are descending. `rate`: long-run tokens
// per second at which time is charged (Dinkelbach 1967); 0: maximizes this step's rate. Ignores
// load.nodes and load.gain.
int ChooseNodes(const StepLoad& load, const StepLatency& llm, absl::Span<const double> chances,
                double rate = 0);

}  // namespace espalier
