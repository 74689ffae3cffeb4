// Which drafts pay. A step of the LLM yields one token per request for sure; a tree adds rows,
// which cost time, and expected tokens, which are the chances that its nodes are accepted. Both
// decisions here maximise expected tokens per second of the whole batch:
// - before drafting, how many requests an SSM should draft for, how deep and about how large, or
//   not at all, from what its drafts were worth so far (ChooseDraft);
// - when candidates and their chances are known, how many of them the LLM should verify, the most
//   probable first whichever request they belong to (ChooseNodes).
// What counts is the rate over many steps, not that of each: a step whose drafts are better than
// most should not stop where its own rate is highest, for the time would yield less elsewhere.
// Where the long-run rate is known, time is paid for at that price (DraftValue; Dinkelbach 1967).
//
// A node's chance is that of its whole path, so it is never above its parent's, and the best set
// of n nodes is the n most probable ones.
//
// Prompt rows that ride in the same step are work that would be done anyway: only what a tree adds
// to the step counts against it.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "serving/speculative/acceptance_estimator.h"
#include "serving/speculative/step_latency_model.h"

namespace espalier {

// What a step is before anything more is drafted.
struct StepLoad {
  int decoding = 0;     // requests that yield at least one token
  int other_rows = 0;   // of prompts
  double context = 0;   // positions that a row of a tree sees, on average
  int nodes = 0;        // of trees that are there already, and their
  double gain = 0;      // expected tokens
  double drafting = 0;  // seconds spent on them
};

// Seconds of the step with `nodes` tree rows, but for the prompts' share.
double StepSeconds(const StepLoad& load, const StepLatencyModel& llm, int nodes);
// Expected tokens per second of the step as it is.
double StepGoodput(const StepLoad& load, const StepLatencyModel& llm);

struct DraftChoice {
  int requests = 0;    // the first so many of the ones offered; 0: do not draft
  int depth = 0;       // levels
  int nodes = 0;       // expected per request
  double rate = 0;     // expected tokens per second of the step
  double gain = 0;     // expected tokens of all the trees
  double seconds = 0;  // of drafting
  int prefill_tokens = 0;    // tokens that the SSM has not run yet, of these requests
  double price = 0;    // what a row costs, in expected tokens; 0 without requests
};

// A request that could be drafted for.
struct DraftCandidate {
  double factor = 1;  // its chances against the average
  int prefill_tokens = 0;   // tokens that the SSM has not run yet
};

struct DraftBounds {
  int depth = 8;                   // at most
  int nodes = 32;                  // per request, at most
  int ranks = AcceptanceEstimator::kRanks;  // children of a node, at most
  int rows = 256;                  // of the step, at most
  double horizon = 64;             // steps over which the cost of catching up is spread
  double overhead = 1;             // what drafting takes, over what the SSM's own steps do
};

// `offers`: best first; all of them are taken but for much worse ones. Rate, and a choice without
// requests, is that of the load alone if nothing is better by `margin` (a share of the rate).
DraftChoice ChooseDraft(const StepLoad& load, const StepLatencyModel& llm, const StepLatencyModel& ssm,
                        const AcceptanceEstimator& acceptance, absl::Span<const DraftCandidate> offers,
                        const DraftBounds& bounds, double margin);

// What trees are worth beside what their time yields in other steps, for one step's load. The
// trees that load has, and its drafting, do not count.
class DraftValue {
 public:
  // `rate`: tokens per second of steps like this one in the long run. `llm` must outlive this, and
  // not change.
  DraftValue(const StepLoad& load, const StepLatencyModel& llm, double rate);

  struct Best {
    int nodes = 0;
    double tokens = 0;  // expected of them, less what the time they take would yield
  };
  // Of the first so many of the candidates, whose chances come in falling order.
  Best Of(absl::Span<const double> chances);
  // What the time that so many nodes take is worth, in tokens.
  double Price(size_t nodes);

 private:
  StepLoad load_;
  const StepLatencyModel& llm_;
  double rate_;
  std::vector<double> price_;  // by nodes, as far as asked
};

// How many of the candidates, whose chances come in falling order, to verify; at most `most`.
// load.nodes and load.gain do not count here: the candidates are all there is.
int ChooseNodes(const StepLoad& load, const StepLatencyModel& llm, absl::Span<const double> chances,
                int most);

}  // namespace espalier
