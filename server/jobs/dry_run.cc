#include "server/jobs/dry_run.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/access/job_priority.h"
#include "server/jobs/job_time_limit.h"
#include "server/jobs/prepare_job.h"
#include "server/jobs/stored_values.h"
#include "server/jobs/trained_parameters.h"

namespace espalier {
namespace {

// Fills in the devices that the job would get if all live workers were idle.
absl::Status FillDevices(const AttemptTools& tools, const v1::TrainingSpec& spec,
                         Machine* machine) {
  const v1::SearchOptions& search = spec.search();
  for (const v1::WorkerInfo& info : tools.workers->List()) {
    const bool stays = info.state() == v1::WorkerInfo::IDLE || info.state() == v1::WorkerInfo::BUSY;
    if (stays) machine->devices.push_back(info.device());
  }
  if (machine->devices.empty()) {
    return absl::FailedPreconditionError(
        "no worker has joined; start one, or let `espalier plan` plan for devices that are not "
        "there");
  }
  size_t wanted = machine->devices.size();
  if (search.max_devices() > 0) wanted = std::min<size_t>(wanted, search.max_devices());
  if (search.strategy() == v1::SearchOptions::SINGLE_DEVICE) wanted = 1;
  if (wanted < static_cast<size_t>(std::max(0, spec.min_devices()))) {
    return absl::FailedPreconditionError(absl::StrCat(
        "at least ", spec.min_devices(), " workers are wanted (min_devices); there ",
        wanted == 1 ? "is 1" : absl::StrCat("are ", wanted), ", and the job would wait for more"));
  }
  const bool imported = search.strategy() == v1::SearchOptions::IMPORTED;
  const size_t planned = search.has_imported() ? search.imported().devices_size()
                                               : std::max(0, search.pipeline_stages());
  if (wanted < planned) {
    return absl::FailedPreconditionError(
        absl::StrCat(search.has_imported() ? "the imported plan" : "the pipeline", " is for ",
                     planned, " workers; there are ", wanted, ", and the job would wait for more"));
  }
  if (imported) wanted = std::min(wanted, std::max<size_t>(planned, 1));
  machine->devices.resize(wanted);
  machine->link = tools.workers->MeasuredLink();
  if (machine->link.bandwidth() <= 0) machine->link = DefaultLink();
  return absl::OkStatus();
}

}  // namespace

void DryRun(const AttemptTools& tools, const v1::TrainingSpec& spec, v1::DryRunReply* reply) {
  const auto stop = [&](const absl::Status& status) {
    reply->add_problems(std::string(status.message()));
  };
  for (const absl::Status& status :
       {CheckPriority("spec.priority", spec.priority()),
        CheckTimeLimit("spec.time_limit_seconds", spec.time_limit_seconds())}) {
    if (!status.ok()) stop(status);
  }
  for (v1::DryRunReply::Unsupported& op :
       FindUnsupported(*tools.registry, *tools.artifacts, spec)) {
    reply->add_problems(absl::StrCat("operator '", op.op(), "' is not supported (", op.nodes(),
                                     op.nodes() == 1 ? " node, '" : " nodes, the first '",
                                     op.first_node(), "'): ", op.reason()));
    *reply->add_unsupported() = std::move(op);
  }
  CalibratedPlanner::Request request;
  const absl::Status devices = FillDevices(tools, spec, &request.machine);
  if (!devices.ok()) stop(devices);
  if (!reply->unsupported().empty()) {
    if (absl::Status fields = CheckSpec(*tools.registry, spec); !fields.ok()) stop(fields);
    return;  // nothing more can be checked without a graph
  }
  absl::StatusOr<PreparedJob> prepared =
      PrepareJob(*tools.registry, *tools.artifacts, *tools.dataset_roots, spec);
  if (!prepared.ok()) return stop(prepared.status());
  reply->set_total_steps(prepared->total_steps);
  reply->set_parameters(prepared->parameters);
  prepared->initial_values.clear();
  *reply->mutable_trained() = CountTrained(prepared->parameter_uses);
  reply->mutable_parameter_uses()->Assign(prepared->parameter_uses.begin(),
                                          prepared->parameter_uses.end());
  reply->mutable_notes()->Assign(prepared->notes.begin(), prepared->notes.end());
  if (!devices.ok()) return;

  request.graph = &prepared->graph;
  request.batch_size = prepared->batch_size;
  request.optimizer = prepared->optimizer;
  request.search = spec.search();
  std::map<std::string, std::unique_ptr<WorkerClient>> clients;
  for (const Member& member : tools.workers->Idle()) {
    std::unique_ptr<WorkerClient>& client = clients[member.device.model()];
    if (client == nullptr) client = tools.dial(member);
    request.measure_on[member.device.model()] = client.get();
  }
  absl::StatusOr<v1::Plan> plan = tools.planner->Make(request);
  if (!plan.ok()) return stop(plan.status());
  LoweringOptions options;
  options.optimizer = prepared->optimizer;
  options.seed = spec.seed();
  options.columns = prepared->columns;
  options.max_literal_bytes = kMaxLiteralBytes;
  options.workspace = tools.planner->workspace();
  options.evaluates = prepared->evaluates;
  absl::StatusOr<LoweredPlan> lowered = LowerPlan(*tools.registry, prepared->graph, *plan, options);
  if (!lowered.ok()) stop(lowered.status());
  for (int rank = 0; rank < plan->devices_size(); ++rank) {
    v1::DryRunReply::DeviceMemory* memory = reply->add_memory();
    memory->set_rank(rank);
    memory->set_model(plan->devices(rank).model());
    memory->set_memory_bytes(plan->devices(rank).memory_bytes());
    memory->set_needed_bytes(lowered.ok() ? lowered->peak_bytes[rank]
                                          : plan->prediction().peak_bytes(rank));
  }
  reply->set_step_seconds(plan->prediction().step_seconds());
  reply->set_total_seconds(plan->prediction().step_seconds() *
                           static_cast<double>(prepared->total_steps));
  *reply->mutable_plan() = *std::move(plan);
}

}  // namespace espalier
