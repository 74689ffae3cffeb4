#include "server/jobs/planner_request_handler.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "ops/graph/take_initial_values.h"
#include "ops/optimizer/optimizer.h"
#include "planner/machine/presets.h"
#include "planner/machine/rates.h"
#include "planner/report/diff.h"
#include "server/jobs/prepare_job.h"

namespace espalier {
namespace {

constexpr size_t kMaxDevices = 4096;

absl::Status CheckRate(const std::string& field, double value, double least = kMinRate) {
  if (value >= least && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, "; it must be at least ", least, " a second, and finite"));
}

absl::Status CheckLatency(const std::string& field, double seconds) {
  if (seconds >= 0 && seconds <= kMaxLatencySeconds) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", seconds, "; it must be 0 to ", kMaxLatencySeconds, " seconds"));
}

absl::Status CheckDevice(const std::string& field, const v1::Device& device) {
  if (device.memory_bytes() <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        field, ".memory_bytes is ", device.memory_bytes(), "; it must be greater than zero"));
  }
  absl::Status s = CheckRate(field + ".matmul_flops", device.matmul_flops());
  if (s.ok()) s = CheckRate(field + ".memory_bandwidth", device.memory_bandwidth());
  if (s.ok()) s = CheckLatency(field + ".op_overhead_seconds", device.op_overhead_seconds());
  return s;
}

}  // namespace

// Fills in the devices to plan for: those of a machine model, those that the request names, or the
// live workers.
absl::Status PlannerRequestHandler::FillMachine(const v1::PlanRequest& request,
                                                CalibratedPlanner::Request* plan) const {
  Machine& machine = plan->machine;
  if (request.has_link()) {
    const double rate = request.link().bandwidth();
    absl::Status s = rate == 0 ? absl::OkStatus() : CheckRate("link.bandwidth", rate, kMinLinkRate);
    if (s.ok()) s = CheckLatency("link.latency_seconds", request.link().latency_seconds());
    if (!s.ok()) return s;
  }
  machine.link = request.link().bandwidth() > 0 ? request.link() : workers_->MeasuredLink();
  if (machine.link.bandwidth() <= 0) machine.link = DefaultLink();
  const bool file = !request.machine_file().empty(), preset = !request.machine_preset().empty();
  if (file + preset + (request.devices_size() > 0) > 1) {
    return absl::InvalidArgumentError(
        "machine_file, machine_preset and devices: at most one may be given");
  }
  if (file || preset) {
    absl::StatusOr<MachineModel> model =
        file ? ReadMachine(request.machine_file())
             : PresetMachine(request.machine_preset(), request.machine_devices());
    if (!model.ok()) {
      return absl::Status(model.status().code(),
                          absl::StrCat(file ? "machine_file: " : "machine_preset: ",
                                       std::string(model.status().message())));
    }
    if (model->devices.size() > kMaxDevices) {
      return absl::InvalidArgumentError(absl::StrCat("the machine has ", model->devices.size(),
                                                     " devices; at most ", kMaxDevices));
    }
    machine.devices = std::move(model->devices);
    machine.name = model->name;
    // Swap bandwidth is that of the slowest host.
    v1::MemoryOptions* memory = plan->search.mutable_memory();
    double slowest = 0;
    for (double rate : model->host_bandwidth) {
      if (rate > 0 && (slowest == 0 || rate < slowest)) slowest = rate;
    }
    if (memory->host_bandwidth() <= 0) memory->set_host_bandwidth(slowest);
    machine.topology = std::make_shared<const Topology>(std::move(model->topology));
    return absl::OkStatus();
  }
  if (request.devices_size() > static_cast<int>(kMaxDevices)) {
    return absl::InvalidArgumentError(
        absl::StrCat("devices: ", request.devices_size(), "; at most ", kMaxDevices));
  }
  for (int i = 0; i < request.devices_size(); ++i) {
    absl::Status s = CheckDevice(absl::StrCat("devices[", i, "]"), request.devices(i));
    if (!s.ok()) return s;
    machine.devices.push_back(request.devices(i));
  }
  if (machine.devices.empty()) {
    for (const v1::WorkerInfo& info : workers_->List()) {
      const bool stays =
          info.state() == v1::WorkerInfo::IDLE || info.state() == v1::WorkerInfo::BUSY;
      if (stays) machine.devices.push_back(info.device());
    }
  }
  if (machine.devices.empty()) {
    return absl::FailedPreconditionError(
        "no worker has joined; start one, or name the devices to plan for");
  }
  return absl::OkStatus();
}

absl::Status PlannerRequestHandler::Make(const v1::PlanRequest& request, const Stop& stop,
                                         v1::PlanReply* reply) {
  absl::StatusOr<PlannedGraph> made = Make(request, stop, /*with_timeline=*/false);
  if (!made.ok()) return made.status();
  *reply->mutable_plan() = std::move(made->plan);
  reply->mutable_notes()->Assign(made->notes.begin(), made->notes.end());
  return absl::OkStatus();
}

absl::StatusOr<TrainableGraph> PlannerRequestHandler::GraphOf(
    const v1::PlanRequest& request) const {
  if (request.batch_size() <= 0) {
    return absl::InvalidArgumentError("batch_size: must be greater than zero");
  }
  const bool onnx = !request.onnx_artifact().empty();
  if (onnx && request.has_graph()) {
    return absl::InvalidArgumentError("graph and onnx_artifact: give one of them");
  }
  if (!onnx && request.graph().nodes().empty()) {
    return absl::InvalidArgumentError(
        "graph: it has no operators; give one that has, or onnx_artifact");
  }
  if (onnx && request.loss().empty() && request.objective().losses().empty()) {
    return absl::InvalidArgumentError(
        "loss: an ONNX model needs one, such as sparse_categorical_crossentropy");
  }
  absl::Status status = CheckPrecision(request.precision(), "precision");
  if (!status.ok()) return status;
  absl::StatusOr<Objective> objective =
      ObjectiveFromProto(request.objective(), request.loss(), request.metrics());
  if (!objective.ok()) return objective.status();
  LabelColumns labels;
  labels.classes = DType::kI64;
  absl::StatusOr<TrainableGraph> model =
      onnx ? ImportOnnxArtifact(*registry_, *artifacts_, request.onnx_artifact(), *objective,
                                labels, request.batch_size())
           : ReadSubmittedGraph(*registry_, request.graph(), request.batch_size());
  if (!model.ok()) return model.status();
  TakeInitialValues(&model->graph);  // a plan does not depend on them
  const int64_t batch = model->batch > 0 ? model->batch : request.batch_size();
  status = BindAndInfer(*registry_, batch, &model->graph);
  if (!status.ok()) return status;
  absl::StatusOr<Graph> planned =
      GraphToPlan(*registry_, model->graph, PrecisionOf(request.precision()));
  if (!planned.ok()) return planned.status();
  return TrainableGraph{*std::move(planned), std::move(model->notes), batch};
}

absl::StatusOr<PlannerRequestHandler::PlannedGraph> PlannerRequestHandler::Make(
    const v1::PlanRequest& request, const Stop& stop, bool with_timeline) {
  absl::StatusOr<TrainableGraph> model = GraphOf(request);
  if (!model.ok()) return model.status();
  PlannedGraph made;
  made.graph = std::move(model->graph);
  made.notes = std::move(model->notes);
  CalibratedPlanner::Request plan;
  plan.graph = &made.graph;
  plan.batch_size = model->batch;
  plan.optimizer = request.optimizer();
  if (plan.optimizer.name().empty()) plan.optimizer.set_name("adam");
  if (request.precision() == v1::F16) plan.optimizer.mutable_loss_scale();
  if (plan.optimizer.has_loss_scale()) {
    CompleteLossScale(*registry_, plan.optimizer.mutable_loss_scale());
  }
  plan.search = request.search();
  plan.profile = request.profile();
  plan.stop = stop;
  if (absl::Status status = FillMachine(request, &plan); !status.ok()) return status;
  const size_t limit = static_cast<size_t>(std::max(0, request.search().max_devices()));
  if (limit > 0 && plan.machine.devices.size() > limit) plan.machine.devices.resize(limit);
  // A measured communication model applies only if the request gives no link or topology.
  if (request.link().bandwidth() <= 0 && plan.machine.topology == nullptr) {
    plan.machine.communication = planner_->Communication(plan.machine.devices);
  }
  std::map<std::string, std::unique_ptr<WorkerClient>> clients;
  for (const Member& member : workers_->Idle()) {
    if (clients.count(member.device.model()) > 0) continue;
    clients[member.device.model()] = dial_(member);
    plan.measure_on[member.device.model()] = clients[member.device.model()].get();
  }
  absl::StatusOr<v1::Plan> found = planner_->Make(plan, with_timeline ? &made.timeline : nullptr);
  if (!found.ok()) return found.status();
  made.plan = *std::move(found);
  absl::StatusOr<Graph> own = espalier::GraphOf(*registry_, made.graph, made.plan);
  if (!own.ok()) return own.status();
  made.graph = *std::move(own);
  return made;
}

absl::StatusOr<v1::Job> PlannerRequestHandler::JobWithPlan(const std::string& job_id) const {
  absl::StatusOr<JobRecord> record = store_->Get(job_id);
  if (!record.ok()) return record.status();
  if (record->job.plan().operators_size() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job_id, " has no plan yet; it gets one when it starts"));
  }
  return std::move(record->job);
}

absl::Status PlannerRequestHandler::Explain(const v1::ExplainRequest& request, const Stop& stop,
                                            v1::ExplainReply* reply) {
  if (request.source_case() == v1::ExplainRequest::kPlan) {
    absl::StatusOr<PlannedGraph> made =
        Make(request.plan(), stop, request.page() || request.task_graph());
    if (!made.ok()) return made.status();
    if (request.page()) reply->set_page(RenderPlanPage(made->plan, made->graph, *made->timeline));
    if (request.task_graph()) reply->set_task_graph(RenderTaskGraph(*made->timeline));
    if (request.computation_graph()) {
      reply->set_computation_graph(
          RenderComputationGraph(made->plan, made->graph, request.costs_in_graph()));
    }
    *reply->mutable_plan() = std::move(made->plan);
    reply->mutable_notes()->Assign(made->notes.begin(), made->notes.end());
  } else {
    if (request.task_graph() || request.computation_graph()) {
      return absl::InvalidArgumentError(
          "task_graph, computation_graph: only of plans that are made now; give plan, not job_id");
    }
    absl::StatusOr<v1::Job> job = JobWithPlan(request.job_id());
    if (!job.ok()) return job.status();
    *reply->mutable_plan() = job->plan();
    *reply->mutable_notes() = job->notes();
    reply->set_measured_step_seconds(job->median_step_seconds());
    if (request.page()) {
      absl::StatusOr<std::string> page = store_->GetBlob(PlanPageBlob(request.job_id()));
      if (!page.ok()) {
        return absl::Status(page.status().code(),
                            absl::StrCat("job ", request.job_id(), " has no page of its plan: ",
                                         std::string(page.status().message())));
      }
      reply->set_page(*std::move(page));
    }
  }
  std::string text;
  for (const std::string& note : reply->notes()) absl::StrAppend(&text, "note: ", note, "\n");
  reply->set_text(absl::StrCat(text, RenderPlan(reply->plan())));
  return absl::OkStatus();
}

absl::Status PlannerRequestHandler::Export(const v1::ExportRequest& request,
                                           v1::ExportReply* reply) {
  absl::StatusOr<v1::Job> job = JobWithPlan(request.job_id());
  if (!job.ok()) return job.status();
  absl::StatusOr<std::string> json = ExportPlan(job->plan());
  if (!json.ok()) return json.status();
  reply->set_json(*std::move(json));
  return absl::OkStatus();
}

absl::Status PlannerRequestHandler::Import(const v1::ImportRequest& request, const Stop& stop,
                                           v1::ImportReply* reply) {
  absl::StatusOr<v1::Plan> plan = ImportPlan(request.json());
  if (!plan.ok()) return plan.status();
  if (request.graph().nodes_size() == 0) {
    *reply->mutable_plan() = *std::move(plan);
    return absl::OkStatus();
  }
  v1::PlanRequest check;
  *check.mutable_graph() = request.graph();
  check.set_batch_size(request.batch_size() > 0 ? request.batch_size() : plan->batch_size());
  *check.mutable_devices() = plan->devices();
  check.set_precision(request.precision());
  *check.mutable_optimizer() = request.optimizer();
  check.mutable_search()->set_strategy(v1::SearchOptions::IMPORTED);
  *check.mutable_search()->mutable_imported() = *std::move(plan);
  v1::PlanReply checked;
  absl::Status status = Make(check, stop, &checked);
  if (!status.ok()) return status;
  *reply->mutable_plan() = std::move(*checked.mutable_plan());
  return absl::OkStatus();
}

absl::Status PlannerRequestHandler::Diff(const v1::DiffRequest& request, v1::DiffReply* reply) {
  for (const auto& [name, plan] : {std::pair("a", &request.a()), std::pair("b", &request.b())}) {
    if (plan->operators_size() == 0) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": it is a plan without operators"));
    }
  }
  const PlanDiff diff = DiffPlans(request.a(), request.b());
  const std::string a = request.name_a().empty() ? "A" : request.name_a();
  const std::string b = request.name_b().empty() ? "B" : request.name_b();
  reply->set_equal(diff.equal());
  reply->set_text(RenderPlanDiff(diff, a, b));
  reply->set_json(PlanDiffToJson(diff, a, b));
  return absl::OkStatus();
}

absl::Status PlannerRequestHandler::Profile(v1::ProfileReply* reply) {
  reply->set_json(planner_->Profile());
  return absl::OkStatus();
}

absl::Status PlannerRequestHandler::Machines(const v1::MachinesRequest& request,
                                             v1::MachinesReply* reply) {
  for (const MachinePreset& preset : MachinePresets()) {
    v1::MachinesReply::Preset* out = reply->add_presets();
    out->set_name(preset.name);
    out->set_summary(preset.summary);
    out->set_per_host(preset.per_host);
    out->set_max_devices(preset.max_devices);
    if (preset.name != request.name()) continue;
    absl::StatusOr<std::string> text =
        PresetText(preset.name, request.devices() > 0 ? request.devices() : preset.per_host);
    if (!text.ok()) return text.status();
    reply->set_text(*std::move(text));
  }
  if (request.name().empty() || !reply->text().empty()) return absl::OkStatus();
  return PresetText(request.name(), 1).status();
}

}  // namespace espalier
