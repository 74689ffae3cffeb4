// The names that probes of a replay can ask for: found as a replay finds them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "espalier/v1/program.pb.h"
#include "espalier/v1/recording.pb.h"
#include "ops/graph/graph.h"
#include "planner/lowering/probe_points.h"

namespace espalier {

// Returns what FindQuestions finds in the programs, and in the graph before rewrites
// (GraphBeforeRewrites): parameters, batch inputs, values as this graph computes them, optimizer
// state. What cannot be read is left out.
absl::StatusOr<std::vector<v1::RunValue>> ValuesOfPrograms(const OpRegistry& registry,
                                                           const ProbePoints& points,
                                                           const std::vector<v1::Program>& programs,
                                                           const Graph& original);

// Keeps those that a pattern, as in ListRunValuesRequest, matches; names of what only programs know
// only if it has their prefix. InvalidArgument as of ParseProbe; NotFound, with similar names, if
// none is left.
absl::Status KeepMatching(const std::string& pattern, std::vector<v1::RunValue>* values);

// What an error about an unknown name adds: "; espalier runs values lm@3 lists what can be asked
// for".
std::string WhereNamesAre(absl::string_view run);

}  // namespace espalier
