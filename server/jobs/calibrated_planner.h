// Makes plans, with operator times measured on the workers that will run them and remembered for
// ever.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "planner/cost/analytic.h"
#include "planner/cost/measured.h"
#include "planner/cost/profile.h"
#include "planner/machine/communication.h"
#include "planner/plan/observe_transfers.h"
#include "planner/planner.h"
#include "server/jobs/search_threads.h"
#include "server/jobs/worker_client.h"
#include "server/store/job_store.h"

namespace espalier {

// The name in the store of the page of a job's plan.
std::string PlanPageBlob(const std::string& job_id);

// What is assumed between two devices until a worker has measured more: TCP over loopback.
v1::Link DefaultLink();

// Thread-safe: one plan is made at a time, on all cores; steps are simulated and pages drawn
// beside.
class CalibratedPlanner {
 public:
  // Operators are measured for at most `measure_seconds` in a plan. `search_threads`: as
  // SearchThreads.
  CalibratedPlanner(const OpRegistry* registry, JobStore* store, double measure_seconds,
           int search_threads = 0);

  struct Request {
    const Graph* graph = nullptr;  // bound
    int64_t batch_size = 0;
    Machine machine;
    v1::Optimizer optimizer;
    v1::SearchOptions search;
    // Device model -> an idle worker that has it. Operators of devices not named are not measured.
    std::map<std::string, WorkerClient*> measure_on;
    // Text of a profile file (planner/cost/profile.h) whose measurements go before those known
    // here; empty: none.
    std::string profile;
    // Optional: once it is true, the search ends with the best plan so far, and what waits for
    // another plan gives up. Asked by several threads.
    std::function<bool()> stop;
    // Where the plan's page is kept in the store (RenderPlanPage); empty: nowhere.
    std::string keep_page_as;
  };
  // Errors of MakePlan, and of a profile that is not one; Cancelled if it was stopped before its
  // turn came. `timeline`, if not null, becomes the plan's simulated step.
  absl::StatusOr<v1::Plan> Make(const Request& request,
                                   std::shared_ptr<const Timeline>* timeline = nullptr);

  // What ranks on these devices have told of their messages and collectives; null if they have not.
  std::shared_ptr<const CommunicationModel> Communication(
      const std::vector<v1::Device>& devices);
  // Keeps what they tell. A profile that makes no sense is logged and dropped.
  void RecordCommunication(const std::vector<v1::Device>& devices,
                           const v1::CommunicationProfile& profile);
  // A job that ran, by rank.
  struct Run {
    const Graph* graph = nullptr;  // bound
    const v1::Plan* plan = nullptr;
    const std::vector<v1::Program>* programs = nullptr;
    const std::vector<v1::Device>* devices = nullptr;
    std::vector<std::vector<OperatorTime>> times;  // in a step
  };
  struct CalibrationReport {
    std::vector<OperatorDrift> drifts;  // SortByError
    bool includes_transfers = false;          // some of them
  };
  // Learns from a job's steps (ObserveRun, ObserveTransfers), and says which operators, messages
  // and collectives took other times than predicted. A run that fits no plan is logged and dropped.
  CalibrationReport RecordRun(const Run& run);
  // Messages between these devices will be measured anew by the next job that runs on them.
  void ForgetCommunication(const std::vector<v1::Device>& devices);
  // All that has been measured, as a profile file.
  std::string Profile();

 private:
  // What is needed to simulate a plan, without the planner.
  struct Simulation;

  absl::StatusOr<v1::Plan> MakeExclusive(const Request& request,
                                         std::unique_ptr<Simulation>* simulation)
      ABSL_LOCKS_EXCLUDED(mutex_, turn_mutex_);
  absl::Status WaitForTurn(const Request& request) ABSL_LOCKS_EXCLUDED(turn_mutex_);
  void EndTurn() ABSL_LOCKS_EXCLUDED(turn_mutex_);
  void SaveTimes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SaveCommunication() ABSL_EXCLUSIVE_LOCKS_REQUIRED(communication_mutex_);
  std::vector<OperatorDrift> RecordTransfers(const Run& run);
  // The measurer of a plan's cost model and its forks, which ask one at a time, while the thread
  // that makes the plan holds mutex_.
  std::optional<CostModel::Times> MeasureOn(const OpDef& def, const NodeTypes& shard,
                                            const v1::Device& device)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const OpRegistry* const registry_;
  JobStore* const store_;
  const double measure_seconds_;
  SearchThreads threads_;
  // Who plans next; at mutex_ itself those who wait could not give up.
  absl::Mutex turn_mutex_;
  bool planning_ ABSL_GUARDED_BY(turn_mutex_) = false;
  absl::Mutex mutex_;
  AnalyticCost analytic_ ABSL_GUARDED_BY(mutex_);
  MeasuredCost cost_ ABSL_GUARDED_BY(mutex_);
  const Request* current_ ABSL_GUARDED_BY(mutex_) = nullptr;
  double seconds_left_ ABSL_GUARDED_BY(mutex_) = 0;
  // Reports of running jobs do not wait for a plan that is being made.
  absl::Mutex communication_mutex_ ABSL_ACQUIRED_AFTER(mutex_);
  CommunicationProfiles communication_ ABSL_GUARDED_BY(communication_mutex_);
};

}  // namespace espalier
