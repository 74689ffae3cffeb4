// What the runs of a replay take together, while it is planned.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "espalier/v1/replay.pb.h"
#include "server/replay/evaluation_answers.h"
#include "server/replay/probe_set.h"
#include "server/replay/replay_planner.h"
#include "server/replay/replay_program.h"

namespace espalier {

// Whether something is asked, and the program answers nothing of it.
bool LacksAll(const ReplayQuestions& asked, const ReplayProgram& program);

struct PlanTotals {
  ReplayQuestions asked;
  int most_workers = 1;  // that work at once
  v1::ReplayEstimate estimate;
  double seconds = 0, loading = 0;  // of all segments, of one worker
  double longest = 0;               // segment, in seconds
  // Probes, and names of graphs, that some run lacks, with the error.
  std::map<std::string, absl::Status> lacking;
  std::set<std::string> known;  // those that some run has

  // Adds the answers of so many steps to the probes of `program`.
  void AddRows(const ReplayProgram& program, int64_t steps);
  // Adds the answers of so many evaluations: of as many `reported` values, of probes and graphs.
  void AddEvaluations(int64_t reported, const EvaluationProbes& probes, int64_t evaluations);
  // Notes which values of a run are computed again beside its programs.
  void AddDerived(const DerivedValues& derived, const std::string& run);
  // Notes which gradients wildcards leave out (ProgramProbes.left_out).
  void AddLeftOut(const std::set<std::string>& gradients, const std::string& run);
  // Takes note of what a run has and lacks of the probes that were looked up.
  void AddNames(const std::vector<ProbeExpression>& asked, const FoundProbes& found,
                const std::string& run);
  void AddFragments(const std::vector<GraphFragment>& asked_fragments,
                    const LackingFragments& lacking_fragments, const std::string& run);
  void AddSegment(v1::ReplaySegment segment, double of_segment, size_t ranks);
  // Adds what a segment copies back of these checkpoints (steps done); returns the seconds that
  // this may take.
  double AddFetched(const ReplayedRun& run, const std::vector<int64_t>& checkpoints);
  // Notes those of run.elsewhere that would be read if they could.
  void AddElsewhere(const ReplayedRun& run, const std::vector<int64_t>& checkpoints);
};

}  // namespace espalier
