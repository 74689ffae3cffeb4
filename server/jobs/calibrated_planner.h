// Makes plans from operator times that are measured on the workers that will run them. The times
// are kept in the job store and corrected by the steps of finished jobs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "ops/cpu/workspace/kernel_workspace.h"
#include "planner/cost/analytic_cost.h"
#include "planner/cost/measured_cost.h"
#include "planner/cost/profile.h"
#include "planner/machine/communication.h"
#include "planner/plan/calibrate_communication.h"
#include "planner/planner.h"
#include "server/jobs/search_threads.h"
#include "server/jobs/worker_client.h"
#include "server/store/job_store.h"

namespace espalier {

// The blob name in the job store under which the HTML page of a job's plan lies.
std::string PlanPageBlob(const std::string& job_id);

// The link assumed between two devices until a worker has measured one: TCP over loopback.
v1::Link DefaultLink();

// Thread-safe. One plan is made at a time, on all cores; simulating steps and rendering pages runs
// in parallel to it.
class CalibratedPlanner {
 public:
  // Measures operators for at most `measure_seconds` per plan. `search_threads` as for
  // SearchThreads.
  CalibratedPlanner(const OpRegistry* registry, JobStore* store, double measure_seconds,
                    int search_threads = 0);

  struct Request {
    const Graph* graph = nullptr;  // bound
    int64_t batch_size = 0;
    Machine machine;
    v1::Optimizer optimizer;
    v1::SearchOptions search;
    // Device model -> an idle worker with such a device. Operators of other devices are not
    // measured.
    std::map<std::string, WorkerClient*> measure_on;
    // Text of a profile file (planner/cost/profile.h), whose measurements take precedence over the
    // stored ones. May be empty.
    std::string profile;
    // Optional. Once it returns true, the search ends with the best plan so far, and a request that
    // still waits for its turn is cancelled. Called by several threads.
    std::function<bool()> stop;
    // Blob name for the plan's page (RenderPlanPage); empty: the page is not stored.
    std::string keep_page_as;
  };
  // Returns the errors of MakePlan, InvalidArgument for a bad profile, and Cancelled if `stop` was
  // true before the request's turn. If `timeline` is not null, stores the plan's simulated step in
  // it.
  absl::StatusOr<v1::Plan> Make(const Request& request,
                                std::shared_ptr<const Timeline>* timeline = nullptr);

  // Returns the cost model of messages and collectives that ranks on these devices have measured,
  // or null if they have not.
  std::shared_ptr<const CommunicationModel> Communication(const std::vector<v1::Device>& devices);
  // Stores a measured profile. An implausible one is logged and dropped. Returns what there was no
  // time to measure, for the job's log; empty: nothing.
  std::string RecordCommunication(const std::vector<v1::Device>& devices,
                                  const v1::CommunicationProfile& profile);
  // A finished run; vectors are by rank.
  struct Run {
    const Graph* graph = nullptr;  // bound
    const v1::Plan* plan = nullptr;
    const std::vector<v1::Program>* programs = nullptr;
    const std::vector<v1::Device>* devices = nullptr;
    std::vector<std::vector<OperatorTime>> times;  // per step
  };
  struct CalibrationReport {
    std::vector<PredictionError> drifts;  // sorted by SortByError
    bool includes_transfers = false;      // some drifts are of messages or collectives
  };
  // Updates the stored times from a job's steps (CalibrateOperators, CalibrateCommunication), and
  // returns the operators, messages and collectives whose times differ from the prediction. A run
  // that does not match its plan is logged and dropped.
  CalibrationReport RecordRun(const Run& run);
  // Drops the profile of these devices, so that the next job on them measures messages again.
  void ForgetCommunication(const std::vector<v1::Device>& devices);
  // Returns all measurements as a profile file.
  std::string Profile();
  // For LoweringOptions. Knows CPU kernels, as they are on this machine's processor. Thread-safe;
  // must not outlive this.
  WorkspaceQuery workspace();

 private:
  // Everything needed to simulate a plan without holding mutex_.
  struct Simulation;

  absl::StatusOr<v1::Plan> MakeExclusive(const Request& request,
                                         std::unique_ptr<Simulation>* simulation)
      ABSL_LOCKS_EXCLUDED(mutex_, turn_mutex_);
  absl::Status WaitForTurn(const Request& request) ABSL_LOCKS_EXCLUDED(turn_mutex_);
  void EndTurn() ABSL_LOCKS_EXCLUDED(turn_mutex_);
  void SaveTimes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SaveCommunication() ABSL_EXCLUSIVE_LOCKS_REQUIRED(communication_mutex_);
  std::vector<PredictionError> RecordTransfers(const Run& run);
  // Called back by the cost model and its forks, one call at a time, while the planning thread
  // holds mutex_.
  std::optional<CostModel::Times> MeasureOn(const OpDef& def, const NodeTypes& shard,
                                            const v1::Device& device)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const OpRegistry* const registry_;
  JobStore* const store_;
  const double measure_seconds_;
  SearchThreads threads_;
  CpuKernelWorkspace cpu_workspace_;
  // Orders the planning requests. Waiting on mutex_ itself could not be cancelled.
  absl::Mutex turn_mutex_;
  bool planning_ ABSL_GUARDED_BY(turn_mutex_) = false;
  absl::Mutex mutex_;
  AnalyticCost analytic_ ABSL_GUARDED_BY(mutex_);
  MeasuredCost cost_ ABSL_GUARDED_BY(mutex_);
  const Request* current_ ABSL_GUARDED_BY(mutex_) = nullptr;
  double seconds_left_ ABSL_GUARDED_BY(mutex_) = 0;
  // A lock of its own, so that reports of running jobs do not wait for a plan.
  absl::Mutex communication_mutex_ ABSL_ACQUIRED_AFTER(mutex_);
  CommunicationProfiles communication_ ABSL_GUARDED_BY(communication_mutex_);
};

}  // namespace espalier
