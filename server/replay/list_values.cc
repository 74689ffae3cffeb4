// What a replay of a run can ask for: ReplayPlanner::ListValues.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/lowering/probe_points.h"
#include "planner/search/apply_rewrites.h"
#include "server/replay/derived_values.h"
#include "server/replay/replay_planner.h"
#include "server/replay/run_values.h"

namespace espalier {

absl::Status ReplayPlanner::ListValues(const v1::ListRunValuesRequest& request,
                                       const Caller& caller, v1::ListRunValuesReply* reply) const {
  const absl::StatusOr<std::vector<std::string>> jobs = Find(request.run(), caller);
  if (!jobs.ok()) return jobs.status();
  if (jobs->size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("run: '", request.run().substr(0, 200), "' are ",
                                                   jobs->size(), " runs; name one"));
  }
  // Workers like the recording's need not be there to say what there is.
  v1::ReplaySpec spec;
  spec.set_run(request.run());
  spec.set_any_plan(true);
  absl::StatusOr<ReplayedRun> run = LoadRun(spec, jobs->front());
  if (!run.ok()) return run.status();
  const v1::RecordedAttempt& last = *run->recording.attempts().rbegin();
  if (absl::Status s = AddPrograms(spec, {last.first_step()}, &*run); !s.ok()) return s;
  const ReplayProgram& program = *run->programs.back();
  const PreparedJob& prepared = program.prepared();
  absl::StatusOr<Graph> rewritten = prepared.graph;
  if (program.plan().rewrites_size() > 0) {
    rewritten = RewrittenGraph(*tools_.registry, prepared.graph, program.plan());
  }
  if (!rewritten.ok()) return rewritten.status();
  const absl::StatusOr<Graph> original =
      GraphBeforeRewrites(*tools_.registry, prepared.model, prepared.graph, prepared.batch_size);
  if (!original.ok()) return original.status();
  const std::vector<v1::Program>& programs = program.lowered().training;
  absl::StatusOr<std::vector<v1::RunValue>> values =
      ValuesOfPrograms(*tools_.registry, ProbePoints(*rewritten, programs), programs, *original);
  if (!values.ok()) return values.status();
  if (absl::Status s = KeepMatching(request.pattern(), &*values); !s.ok()) return s;
  reply->set_run(run->name());
  for (v1::RunValue& value : *values) *reply->add_values() = std::move(value);
  if (program.plan().graph_fingerprint() != last.plan().graph_fingerprint()) {
    reply->add_notes(
        "this version of Espalier makes another graph of the model than the recording has: names "
        "are those of "
        "a plan made now, which --any-plan replays");
  }
  return absl::OkStatus();
}

}  // namespace espalier
