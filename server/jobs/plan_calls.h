// What the Planner service answers: plans without a job, and the plans of jobs.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "proto/plan.pb.h"
#include "server/artifacts/artifact_store.h"
#include "server/jobs/plan_desk.h"
#include "server/jobs/worker_client.h"
#include "server/membership/worker_registry.h"
#include "server/store/job_store.h"

namespace espalier {

// Thread-safe. Where a request names no optimiser, memory is counted for Adam, which needs the
// most.
class PlanCalls {
 public:
  // All pointers must outlive this.
  PlanCalls(const OpRegistry* registry, PlanDesk* desk, const ArtifactStore* artifacts,
            WorkerRegistry* workers, JobStore* store, WorkerDialer dial)
      : registry_(registry),
        desk_(desk),
        artifacts_(artifacts),
        workers_(workers),
        store_(store),
        dial_(std::move(dial)) {}

  // Optional: once it is true, a search ends with the best plan so far.
  using Stop = std::function<bool()>;

  absl::Status Make(const proto::PlanRequest& request, const Stop& stop, proto::PlanReply* reply);
  absl::Status Explain(const proto::ExplainRequest& request, const Stop& stop,
                       proto::ExplainReply* reply);
  absl::Status Export(const proto::ExportRequest& request, proto::ExportReply* reply);
  absl::Status Import(const proto::ImportRequest& request, const Stop& stop,
                      proto::ImportReply* reply);
  absl::Status Diff(const proto::DiffRequest& request, proto::DiffReply* reply);
  absl::Status Profile(proto::ProfileReply* reply);
  absl::Status Machines(const proto::MachinesRequest& request, proto::MachinesReply* reply);

 private:
  // A plan, what it is for, and what a step of it looks like.
  struct Made {
    proto::Plan plan;
    Graph graph;
    std::shared_ptr<const Timeline> timeline;  // if asked for
  };
  absl::StatusOr<Made> Make(const proto::PlanRequest& request, const Stop& stop,
                            bool with_timeline);
  absl::StatusOr<Graph> GraphOf(const proto::PlanRequest& request) const;  // bound, to be planned
  absl::Status FillMachine(const proto::PlanRequest& request, PlanDesk::Request* plan) const;
  absl::StatusOr<proto::Job> JobWithPlan(const std::string& job_id) const;

  const OpRegistry* const registry_;
  PlanDesk* const desk_;
  const ArtifactStore* const artifacts_;
  WorkerRegistry* const workers_;
  JobStore* const store_;
  const WorkerDialer dial_;
};

}  // namespace espalier
