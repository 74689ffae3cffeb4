// All that a replay asks, and where the programs of a plan have it.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
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
#include "server/replay/probe_set.h"
#include "server/replay/program_probes.h"

namespace espalier {

struct ReplayQuestions {
  std::vector<ProbeExpression> probes;
  std::vector<GraphFragment> fragments;
};

// Those of ReplaySpec.log and graphs. Errors name the probe's number, or the graph.
absl::StatusOr<ReplayQuestions> ParseQuestions(const OpRegistry& registry,
                                               const v1::ReplaySpec& spec);

// Fragments, by name, that cannot be answered, with the reason, which names the graph.
using LackingFragments = std::vector<std::pair<std::string, absl::Status>>;

struct ProgramQuestions {
  // What the ranks read: the probes that the programs have, then fragments.sources(), then
  // those of `probes.derived`.
  ProgramProbes probes;
  GraphFragments fragments;
  LackingFragments lacking_fragments;

  // Takes the rows of a step that were read; returns those of the answers. Errors as of
  // DerivedValues and GraphFragments.
  absl::StatusOr<std::vector<v1::HistoryRow>> Complete(std::vector<v1::HistoryRow> rows,
                                                       int64_t step) const;
};

// The type of the tensor that a probe reads; nullopt if no rank reads any.
std::optional<TensorType> TypeOfRead(const NamedProbe& probe, const FoundProbes& found,
                                     const std::vector<v1::Program>& programs);

// The type of a fragment's input, which is among `probes`. Errors say why it is not read.
absl::StatusOr<TensorType> TypeOfSource(const ProbeExpression& source, const ProgramProbes& probes,
                                        const std::vector<v1::Program>& programs);

// InvalidArgument if another answer has the name of one of these: an answer is told from others by
// its name.
absl::Status CheckNamesOfAnswers(const std::vector<std::pair<std::string, TensorType>>& answers,
                                 const ProbePoints& points, const ProgramProbes& probes);

struct ExpandedFragments {
  std::vector<GraphFragment> fragments;  // without patterns
  // By name of a fragment with a pattern, those that it was expanded to.
  std::map<std::string, std::vector<std::string>> names_of;
};

// Replaces fragments with a pattern by those for each name that it matches in all inputs that have
// it. Where nothing matches, they are added to `lacking`.
ExpandedFragments Expand(const std::vector<GraphFragment>& fragments, const ProbePoints& points,
                         LackingFragments* lacking);

// Adds fragments with a pattern that can be answered for none of their names. `left`: those that
// can be answered.
void AddLackingPatterns(const std::map<std::string, std::vector<std::string>>& names_of,
                        const std::vector<GraphFragment>& left, LackingFragments* lacking);

// As FindProgramProbes; the programs outlive the call only.
absl::StatusOr<ProgramQuestions> FindQuestions(
    const OpRegistry& registry, const ProbePoints& points, const std::vector<v1::Program>& programs,
    const ReplayQuestions& asked, const std::function<absl::StatusOr<Graph>()>& original_graph);

}  // namespace espalier
