// What a replay of a run can ask for: ReplayPlanner::ListValues.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "ops/graph/graph_proto.h"
#include "planner/lowering/probe_points.h"
#include "planner/search/apply_rewrites.h"
#include "server/replay/derived_values.h"
#include "server/replay/replay_planner.h"
#include "server/replay/run_values.h"
#include "server/replay/state_tensors.h"

namespace espalier {

namespace {

// What questions at checkpoints can read of a checkpoint, as probes write it.
std::vector<v1::RunValue> ValuesOfState(const StateTensors& state) {
  std::vector<v1::RunValue> values, states;
  const auto add = [](const ProbeTarget& target, const StateTensors::Tensor& tensor,
                      v1::RunValue::Kind kind, std::vector<v1::RunValue>* to) {
    v1::RunValue& value = to->emplace_back();
    value.set_kind(kind);
    value.set_name(target.name);
    value.set_slot(target.slot);
    value.set_log(ToString(target));
    value.mutable_type()->set_dtype(ToProto(tensor.dtype));
    value.mutable_type()->mutable_dims()->Assign(tensor.global.begin(), tensor.global.end());
  };
  for (const auto& [name, tensor] : state.tensors()) {
    if (tensor.is_state) continue;
    add({ProbeTarget::kParam, name, ""}, tensor, v1::RunValue::PARAMETER, &values);
    const std::string prefix = absl::StrCat(name, ".");
    for (auto of_name = state.tensors().lower_bound(prefix);
         of_name != state.tensors().end() && absl::StartsWith(of_name->first, prefix); ++of_name) {
      if (!of_name->second.is_state) continue;
      add({ProbeTarget::kState, name, of_name->first.substr(prefix.size())}, of_name->second,
          v1::RunValue::OPTIMIZER_STATE, &states);
    }
  }
  values.insert(values.end(), states.begin(), states.end());
  return values;
}

}  // namespace

absl::StatusOr<std::vector<v1::RunValue>> ReplayPlanner::StateOf(const ReplayedRun& run) const {
  const auto& checkpoints = run.recording.checkpoints();
  const auto stored = std::find_if(checkpoints.rbegin(), checkpoints.rend(),
                                   [](const auto& checkpoint) { return checkpoint.stored(); });
  if (stored == checkpoints.rend()) return run.inputs;
  const absl::StatusOr<std::unique_ptr<CheckpointTensors>> tensors = CheckpointTensors::Open(
      *tools_.checkpoints, JoinPath(run.job_id, stored->directory()), stored->steps_done());
  if (!tensors.ok()) return tensors.status();
  return ValuesOfState(**tensors);
}

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
  spec.set_at_checkpoints(true);  // what these answer can be said without the run's inputs
  absl::StatusOr<ReplayedRun> run = LoadRun(spec, jobs->front());
  if (!run.ok()) return run.status();
  if (!run->inputs.ok()) {
    absl::StatusOr<std::vector<v1::RunValue>> state = StateOf(*run);
    if (!state.ok()) return state.status();
    if (absl::Status s = KeepMatching(request.pattern(), &*state); !s.ok()) return s;
    reply->set_run(run->name());
    for (v1::RunValue& value : *state) *reply->add_values() = std::move(value);
    reply->add_notes(absl::StrCat(run->inputs.message(),
                                  "; until then only checkpoints can be asked (--at=checkpoints)"));
    return absl::OkStatus();
  }
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
