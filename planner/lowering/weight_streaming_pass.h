// Makes the parameters of a serving program stream in from the host where they would take more of
// the device than they may: planner/memory/weight_streaming.h says which ones and when.
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

// The uses that read less than all of their parameter: of such a one, copying would be waste.
std::set<ParameterUse> PartialUses(const OpRegistry& registry, const Graph& graph);

// The smallest budget that RunWeightStreamingPass would take.
int64_t MinResidentBytes(const std::set<ParameterUse>& partial, const RankProgram& program);

// Rewrites a forward program that is otherwise complete, but not finished, so that its parameters
// take at most `budget` bytes: a swap_in brings each of those that do not stay. Returns the bytes
// that every step copies. ResourceExhausted, with the bytes that would do, for a budget that is too
// small: the program is then as it was.
absl::StatusOr<int64_t> RunWeightStreamingPass(const std::set<ParameterUse>& partial, int64_t budget,
                                         RankProgram* program);

}  // namespace espalier
