#include "server/jobs/plan_calls.h"

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "server/jobs/prepare.h"

namespace espalier {
namespace {

constexpr int kMaxDevices = 4096;

}  // namespace

absl::Status PlanCalls::Make(const proto::PlanRequest& request, proto::PlanReply* reply) {
  if (request.batch_size() <= 0) {
    return absl::InvalidArgumentError("batch_size: must be greater than zero");
  }
  absl::StatusOr<Graph> graph = FromProto(*registry_, request.graph());
  if (!graph.ok()) return graph.status();
  absl::Status status = BindAndInfer(*registry_, request.batch_size(), &*graph);
  if (!status.ok()) return status;

  graph = GraphToPlan(*registry_, *graph, DType::kF32);
  if (!graph.ok()) return graph.status();

  PlanDesk::Request plan;
  plan.graph = &*graph;
  plan.batch_size = request.batch_size();
  plan.optimizer.set_name("adam");
  plan.search = request.search();
  plan.machine.link = request.link().bandwidth() > 0 ? request.link() : workers_->MeasuredLink();
  if (plan.machine.link.bandwidth() <= 0) plan.machine.link = DefaultLink();
  if (request.devices_size() > kMaxDevices) {
    return absl::InvalidArgumentError(
        absl::StrCat("devices: ", request.devices_size(), "; at most ", kMaxDevices));
  }
  for (int i = 0; i < request.devices_size(); ++i) {
    const proto::Device& device = request.devices(i);
    if (device.memory_bytes() <= 0 || !(device.matmul_flops() > 0) ||
        !(device.memory_bandwidth() > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("devices[", i,
                       "]: memory_bytes, matmul_flops and memory_bandwidth must be "
                       "greater than zero"));
    }
    plan.machine.devices.push_back(device);
  }
  if (plan.machine.devices.empty()) {
    for (const proto::WorkerInfo& info : workers_->List()) {
      if (info.state() != proto::WorkerInfo::DEAD) plan.machine.devices.push_back(info.device());
    }
  }
  const size_t limit = static_cast<size_t>(std::max(0, request.search().max_devices()));
  if (limit > 0 && plan.machine.devices.size() > limit) plan.machine.devices.resize(limit);
  if (plan.machine.devices.empty()) {
    return absl::FailedPreconditionError(
        "no worker has joined; start one, or name the devices to plan for");
  }
  std::map<std::string, std::unique_ptr<WorkerClient>> clients;
  for (const Member& member : workers_->Idle()) {
    if (clients.count(member.device.model()) > 0) continue;
    clients[member.device.model()] = dial_(member.address);
    plan.measure_on[member.device.model()] = clients[member.device.model()].get();
  }
  absl::StatusOr<proto::Plan> made = desk_->Make(plan);
  if (!made.ok()) return made.status();
  *reply->mutable_plan() = *std::move(made);
  return absl::OkStatus();
}

absl::StatusOr<proto::Job> PlanCalls::JobWithPlan(const std::string& job_id) const {
  absl::StatusOr<JobRecord> record = store_->Get(job_id);
  if (!record.ok()) return record.status();
  if (record->job.plan().operators_size() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job_id, " has no plan yet; it gets one when it starts"));
  }
  return std::move(record->job);
}

absl::Status PlanCalls::Explain(const proto::ExplainRequest& request, proto::ExplainReply* reply) {
  if (request.of_case() == proto::ExplainRequest::kPlan) {
    proto::PlanReply plan;
    absl::Status status = Make(request.plan(), &plan);
    if (!status.ok()) return status;
    *reply->mutable_plan() = std::move(*plan.mutable_plan());
  } else {
    absl::StatusOr<proto::Job> job = JobWithPlan(request.job_id());
    if (!job.ok()) return job.status();
    *reply->mutable_plan() = job->plan();
    reply->set_measured_step_seconds(job->median_step_seconds());
  }
  reply->set_text(RenderPlan(reply->plan()));
  return absl::OkStatus();
}

absl::Status PlanCalls::Export(const proto::ExportRequest& request, proto::ExportReply* reply) {
  absl::StatusOr<proto::Job> job = JobWithPlan(request.job_id());
  if (!job.ok()) return job.status();
  absl::StatusOr<std::string> json = ExportPlan(job->plan());
  if (!json.ok()) return json.status();
  reply->set_json(*std::move(json));
  return absl::OkStatus();
}

absl::Status PlanCalls::Import(const proto::ImportRequest& request, proto::ImportReply* reply) {
  absl::StatusOr<proto::Plan> plan = ImportPlan(request.json());
  if (!plan.ok()) return plan.status();
  if (request.graph().nodes_size() == 0) {
    *reply->mutable_plan() = *std::move(plan);
    return absl::OkStatus();
  }
  proto::PlanRequest check;
  *check.mutable_graph() = request.graph();
  check.set_batch_size(request.batch_size() > 0 ? request.batch_size() : plan->batch_size());
  *check.mutable_devices() = plan->devices();
  check.mutable_search()->set_strategy(proto::SearchOptions::IMPORTED);
  *check.mutable_search()->mutable_imported() = *std::move(plan);
  proto::PlanReply checked;
  absl::Status status = Make(check, &checked);
  if (!status.ok()) return status;
  *reply->mutable_plan() = std::move(*checked.mutable_plan());
  return absl::OkStatus();
}

}  // namespace espalier
