// Draft policy: which drafts pay. An LLM step yields one token per request for sure; a tree adds
// rows, which cost time, and expected tokens, the acceptance chances of its nodes. Two decisions
// maximize goodput, the expected tokens per second of the whole batch:
// - Before drafting: for how many requests an SSM drafts, how deep and how large, or not at all
//   (ChooseDraft).
// - When candidates and their chances are known: how many of them the LLM verifies, the most
//   probable first across requests (ChooseNodes). The objective is the rate over many steps: where
//   the long-run rate is known, time is charged at that price (DraftValue; Dinkelbach 1967).
//
// A node's chance is that of its whole path, so it never exceeds its parent's, and the best n nodes
// are the n most probable ones. Prompt rows in the same step are work that has to be done anyway:
// only what a tree adds counts against it.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "serving/speculative/acceptance_estimator.h"
#include "serving/speculative/step_latency_model.h"

namespace espalier {

// A step before anything more is drafted.
struct StepLoad {
  int decoding = 0;     // requests that yield at least one token
  int other_rows = 0;   // of prompts
  double context = 0;   // mean positions that a tree row attends to
  int nodes = 0;        // of existing trees
  double gain = 0;      // expected tokens of these
  double drafting = 0;  // seconds spent on these
};

// Seconds of the step with `nodes` tree rows, without the prompts' share.
double StepSeconds(const StepLoad& load, const StepLatencyModel& llm, int nodes);
// Expected tokens per second of the step as it is.
double StepGoodput(const StepLoad& load, const StepLatencyModel& llm);

struct DraftChoice {
  int requests = 0;        // the first so many of the ones offered; 0: do not draft
  int depth = 0;           // levels
  int nodes = 0;           // expected per request
  double rate = 0;         // expected tokens per second of the step
  double gain = 0;         // expected tokens of all the trees
  double seconds = 0;      // of drafting
  int prefill_tokens = 0;  // tokens that the SSM has not run yet, of these requests
  double price = 0;        // what a row costs, in expected tokens; 0 without requests
};

// A request that can be drafted for.
struct DraftCandidate {
  double factor = 1;       // its acceptance relative to the average
  int prefill_tokens = 0;  // tokens that the SSM has not run yet
};

struct DraftBounds {
  int depth = 8;                            // at most
  int nodes = 32;                           // per request, at most
  int ranks = AcceptanceEstimator::kRanks;  // children of a node, at most
  int rows = 256;                           // of the step, at most
  double horizon = 64;                      // steps over which the cost of catching up is spread
  double overhead = 1;                      // what drafting takes, over what the SSM's own steps do
};

// `offers`: best first; all are taken except much worse ones. Returns a choice without requests,
// with the rate of the load alone, unless drafting is better by `margin` (a fraction of the rate).
DraftChoice ChooseDraft(const StepLoad& load, const StepLatencyModel& llm,
                        const StepLatencyModel& ssm, const AcceptanceEstimator& acceptance,
                        absl::Span<const DraftCandidate> offers, const DraftBounds& bounds,
                        double margin);

// The value of a tree, less the value of the time it takes in other steps. Ignores the trees of
// `load` and their drafting.
class DraftValue {
 public:
  // `rate`: long-run tokens per second. `llm` must outlive this object and not change.
  DraftValue(const StepLoad& load, const StepLatencyModel& llm, double rate);

  struct Best {
    int nodes = 0;
    double tokens = 0;  // expected of them, less what the time they take would yield
  };
  // The best number of leading candidates; chances are descending.
  Best Of(absl::Span<const double> chances);
  // The value, in tokens, of the time that this number of nodes takes.
  double Price(size_t nodes);

 private:
  StepLoad load_;
  const StepLatencyModel& llm_;
  double rate_;
  std::vector<double> price_;  // by nodes, as far as asked
};

// Returns how many leading candidates to verify, at most `most`; chances are descending. Ignores
// load.nodes and load.gain.
int ChooseNodes(const StepLoad& load, const StepLatencyModel& llm, absl::Span<const double> chances,
                int most);

}  // namespace espalier
