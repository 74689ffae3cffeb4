// Exploration of draft sizes: runs steps of sizes that are not the best known ones now and then, so
// that their latency stays known.
#pragma once

#include "absl/types/span.h"
#include "serving/speculative/draft_policy.h"
#include "serving/speculative/step_latency_model.h"

namespace espalier {

// Whether exploration number `turn` takes a size that is believed to be far worse but was never
// compared often enough (StepLatencyModel::Proven): it may have been measured while the machine was
// slow. Other explorations take sizes that are nearly as good.
bool IsFarExploration(int turn);

// Returns how many nodes to verify in exploration number `turn`, in addition to the load's.
// `chances`: of the candidates, descending; `best`: the best known number. Near explorations vary
// the number; a far one takes the most promising number above `best`. Returns `best` if there is
// nothing to explore. Numbers are multiples of `unit`.
int NodesToExplore(StepLoad load, const StepLatencyModel& llm, absl::Span<const double> chances,
                   int best, int turn, int unit = 1);

}  // namespace espalier
