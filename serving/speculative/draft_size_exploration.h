// Sizes of the LLM's steps that are not the best as far as is known, to be run all the same now and
// then: nothing is learned of what is never run.
#pragma once

#include "absl/types/span.h"
#include "serving/speculative/step_latency_model.h"
#include "serving/speculative/draft_policy.h"

namespace espalier {

// Whether the turn-th try is of a size that is believed to be far worse, and was never compared
// with others often enough (StepLatencyModel::Proven): it may have been timed when the machine was half as
// fast. The other tries are of sizes that are nearly as good.
bool IsFarExploration(int turn);

// How many nodes to verify at the turn-th try, beside those that the load has. `chances` of the
// candidates, in falling order; `best`: of them the number that is the best as far as is known.
// Near tries are each time of another number; a far one is of the most promising that is larger
// than `best`, or of `best` itself. `best` where there is nothing to try. Only multiples of `unit`
// can be had.
int NodesToExplore(StepLoad load, const StepLatencyModel& llm, absl::Span<const double> chances, int best,
               int turn, int unit = 1);

}  // namespace espalier
