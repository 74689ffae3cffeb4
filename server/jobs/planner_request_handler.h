// Implements the requests of the Planner service: plans without a job, and the plans of jobs.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/plan.pb.h"
#include "ops/graph/graph.h"
#include "server/artifacts/artifact_store.h"
#include "server/jobs/calibrated_planner.h"
#include "server/jobs/prepare_job.h"
#include "server/jobs/worker_client.h"
#include "server/membership/worker_registry.h"
#include "server/store/job_store.h"

namespace espalier {

// Thread-safe. Where a request names no optimizer, memory is planned for Adam, which needs the
// most.
class PlannerRequestHandler {
 public:
  // All pointers must outlive the handler.
  PlannerRequestHandler(const OpRegistry* registry, CalibratedPlanner* planner,
                        const ArtifactStore* artifacts, WorkerRegistry* workers, JobStore* store,
                        WorkerDialer dial)
      : registry_(registry),
        planner_(planner),
        artifacts_(artifacts),
        workers_(workers),
        store_(store),
        dial_(std::move(dial)) {}

  // Optional. Once it returns true, a search ends with the best plan so far.
  using Stop = std::function<bool()>;

  absl::Status Make(const v1::PlanRequest& request, const Stop& stop, v1::PlanReply* reply);
  absl::Status Explain(const v1::ExplainRequest& request, const Stop& stop,
                       v1::ExplainReply* reply);
  absl::Status Export(const v1::ExportRequest& request, v1::ExportReply* reply);
  absl::Status Import(const v1::ImportRequest& request, const Stop& stop, v1::ImportReply* reply);
  absl::Status Diff(const v1::DiffRequest& request, v1::DiffReply* reply);
  absl::Status Profile(v1::ProfileReply* reply);
  absl::Status Machines(const v1::MachinesRequest& request, v1::MachinesReply* reply);

 private:
  // A plan, its graph, and its simulated step.
  struct PlannedGraph {
    v1::Plan plan;
    Graph graph;
    std::shared_ptr<const Timeline> timeline;  // null unless requested
    std::vector<std::string> notes;            // DryRunReply.notes
  };
  absl::StatusOr<PlannedGraph> Make(const v1::PlanRequest& request, const Stop& stop,
                                    bool with_timeline);
  // Bound; what is planned.
  absl::StatusOr<TrainableGraph> GraphOf(const v1::PlanRequest& request) const;
  absl::Status FillMachine(const v1::PlanRequest& request, CalibratedPlanner::Request* plan) const;
  absl::StatusOr<v1::Job> JobWithPlan(const std::string& job_id) const;

  const OpRegistry* const registry_;
  CalibratedPlanner* const planner_;
  const ArtifactStore* const artifacts_;
  WorkerRegistry* const workers_;
  JobStore* const store_;
  const WorkerDialer dial_;
};

}  // namespace espalier
