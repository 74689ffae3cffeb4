// All that a replay asks, and where the programs of a plan have it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/program.pb.h"
#include "espalier/v1/replay.pb.h"
#include "ops/graph/graph.h"
#include "ops/probe/expression.h"
#include "planner/lowering/probe_points.h"
#include "server/replay/graph_fragments.h"
#include "server/replay/program_probes.h"

namespace espalier {

struct ReplayQuestions {
  std::vector<ProbeExpression> probes;
  std::vector<GraphFragment> fragments;
};

// Those of ReplaySpec.log and graphs. Errors name the probe's number, or the graph.
absl::StatusOr<ReplayQuestions> ParseQuestions(const OpRegistry& registry,
                                               const v1::ReplaySpec& spec);

struct ProgramQuestions {
  // What the ranks read: the probes that the programs have, then fragments.sources(), then
  // those of `probes.derived`.
  ProgramProbes probes;
  GraphFragments fragments;
  // Fragments that the programs cannot answer, with the reason, which names the graph.
  std::vector<std::pair<std::string, absl::Status>> lacking_fragments;

  // Takes the rows of a step that were read; returns those of the answers. Errors as of
  // DerivedValues and GraphFragments.
  absl::StatusOr<std::vector<v1::HistoryRow>> Complete(std::vector<v1::HistoryRow> rows,
                                                       int64_t step) const;
};

// As FindProgramProbes; the programs outlive the call only.
absl::StatusOr<ProgramQuestions> FindQuestions(
    const OpRegistry& registry, const ProbePoints& points, const std::vector<v1::Program>& programs,
    const ReplayQuestions& asked, const std::function<absl::StatusOr<Graph>()>& original_graph);

}  // namespace espalier
