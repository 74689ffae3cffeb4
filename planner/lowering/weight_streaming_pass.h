// Rewrites a serving program so that parameters stream from the host if they exceed their share of
// device memory. planner/memory/weight_streaming.h decides which ones and when.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "ops/schema/registry.h"
#include "planner/lowering/rank_program.h"

namespace espalier {

// Operator and parameter, by name.
using ParameterUse = std::pair<std::string, std::string>;

// Returns the uses that read only part of their parameter; copying such a parameter would be
// wasteful.
std::set<ParameterUse> PartialUses(const OpRegistry& registry, const Graph& graph);

// Returns the smallest budget that RunWeightStreamingPass accepts.
int64_t MinResidentBytes(const std::set<ParameterUse>& partial, const RankProgram& program);

// Rewrites a complete but unfinished forward program so that its parameters take at most `budget`
// bytes; a swap_in brings each of the others. Returns the bytes that every step copies. Returns
// ResourceExhausted, with the least sufficient budget, if `budget` is too small; the program is
// then unchanged.
absl::StatusOr<int64_t> RunWeightStreamingPass(const std::set<ParameterUse>& partial,
                                               int64_t budget, RankProgram* program);

}  // namespace espalier
