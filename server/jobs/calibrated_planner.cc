#include "server/jobs/calibrated_planner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "ops/cpu/register_all.h"
#include "ops/kernel/kernel.h"
#include "ops/rewrite/proof.h"
#include "server/jobs/operator_programs.h"

namespace espalier {
namespace {

constexpr char kTimesBlob[] = "operator_times";
constexpr char kCommunicationBlob[] = "communication";  // a profile without operators
constexpr int kRepetitions = 3;
// Interval at which a waiting request polls its `stop`.
constexpr absl::Duration kStopPollInterval = absl::Milliseconds(100);
// Larger programs are not measured: filling their operands would itself use up the budget.
constexpr int64_t kMaxMeasuredBytes = int64_t{1} << 30;

// REQUIRES: `profiles` were checked when they were stored.
std::shared_ptr<const CommunicationModel> CommunicationModelOf(
    const CommunicationProfiles& profiles, const std::vector<v1::Device>& devices) {
  const auto found = profiles.find(CommunicationKey(devices));
  if (found == profiles.end()) return nullptr;
  absl::StatusOr<CommunicationModel> model = CommunicationModel::Create(found->second);
  if (!model.ok()) return nullptr;
  return std::make_shared<const CommunicationModel>(*std::move(model));
}

// What the ranks of `devices` had no time to measure (worker/collective/measure_communication.h).
std::string DescribeUnmeasured(const v1::CommunicationProfile& profile, size_t devices) {
  std::set<int> kinds;
  for (const v1::CommunicationProfile::Collective& c : profile.collectives()) {
    if (c.ranks() == static_cast<int>(devices)) kinds.insert(c.kind());
  }
  constexpr size_t kKinds = v1::CollectiveInstruction::Kind_ARRAYSIZE - 1;  // without UNSPECIFIED
  if (kinds.size() == kKinds && profile.messages_size() > 0) return "";
  return absl::StrCat(
      "the network between the workers is slow: in the time for measuring it there was none for ",
      profile.messages_size() > 0 ? "" : "messages and ", kKinds - kinds.size(), " of ", kKinds,
      " kinds of collectives; plans take them from the latency and the bandwidth of the "
      "connections");
}

double MonotonicSeconds() { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); }

// Substitution rules of a user are applied only after they have been proven.
absl::Status ProveSubstitutions(const OpRegistry& registry, const v1::SearchOptions& search) {
  for (const std::string* text : {&search.substitutions(), &search.imported().substitutions()}) {
    if (text->empty()) continue;
    KernelRegistry kernels;
    RegisterCpuKernels(kernels);
    absl::Status status = ReadProvenRules(registry, kernels, *text).status();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

struct CalibratedPlanner::Simulation {
  explicit Simulation(const MeasuredCost& known) : cost(known.Snapshot(&analytic)) {}

  AnalyticCost analytic;
  MeasuredCost cost;
  PlanProblem problem;  // its cost model points into this struct
};

std::string PlanPageBlob(const std::string& job_id) { return "plan_page/" + job_id; }

v1::Link DefaultLink() {
  v1::Link link;
  link.set_bandwidth(2.0e9);
  link.set_latency_seconds(80e-6);
  return link;
}

CalibratedPlanner::CalibratedPlanner(const OpRegistry* registry, JobStore* store,
                                     double measure_seconds, int search_threads)
    : registry_(registry),
      store_(store),
      measure_seconds_(measure_seconds),
      threads_(search_threads),
      cost_(&analytic_, [this](const OpDef& def, const NodeTypes& shard, const v1::Device& device) {
        mutex_.AssertHeld();
        return MeasureOn(def, shard, device);
      }) {
  absl::MutexLock lock(&mutex_);
  absl::MutexLock communication_lock(&communication_mutex_);
  absl::Status status;
  if (absl::StatusOr<std::string> saved = store_->GetBlob(kTimesBlob); saved.ok()) {
    status = cost_.Load(*saved);
  }
  if (!status.ok()) spdlog::warn("measured operator times are dropped: {}", status.ToString());
  if (absl::StatusOr<std::string> saved = store_->GetBlob(kCommunicationBlob); saved.ok()) {
    MeasuredCost no_operators(&analytic_);
    status = LoadProfile(*saved, &no_operators, &communication_);
  }
  if (!status.ok()) spdlog::warn("measured messages are dropped: {}", status.ToString());
}

std::string CalibratedPlanner::Profile() {
  absl::MutexLock lock(&mutex_);
  absl::MutexLock communication_lock(&communication_mutex_);
  return SaveProfile(cost_, communication_);
}

WorkspaceQuery CalibratedPlanner::workspace() {
  return [this](const KernelSpec& spec, const v1::Device& device) -> std::optional<int64_t> {
    if (device.kind() != v1::Device::CPU) return std::nullopt;
    return cpu_workspace_.Bytes(spec, std::max(1, device.threads()));
  };
}

std::shared_ptr<const CommunicationModel> CalibratedPlanner::Communication(
    const std::vector<v1::Device>& devices) {
  absl::MutexLock lock(&communication_mutex_);
  return CommunicationModelOf(communication_, devices);
}

std::string CalibratedPlanner::RecordCommunication(const std::vector<v1::Device>& devices,
                                                   const v1::CommunicationProfile& profile) {
  absl::StatusOr<CommunicationModel> model = CommunicationModel::Create(profile);
  if (!model.ok()) {
    spdlog::warn("what workers measured of messages is dropped: {}", model.status().ToString());
    return "";
  }
  {
    absl::MutexLock lock(&communication_mutex_);
    communication_[CommunicationKey(devices)] = profile;
    SaveCommunication();
  }
  return DescribeUnmeasured(profile, devices.size());
}

void CalibratedPlanner::ForgetCommunication(const std::vector<v1::Device>& devices) {
  absl::MutexLock lock(&communication_mutex_);
  if (communication_.erase(CommunicationKey(devices)) > 0) SaveCommunication();
}

CalibratedPlanner::CalibrationReport CalibratedPlanner::RecordRun(const Run& run) {
  CalibrationReport calibration;
  {
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<std::vector<PredictionError>> drifts =
        CalibrateOperators(*registry_, *run.graph, *run.plan, run.times, &cost_);
    if (drifts.ok()) {
      calibration.drifts = *std::move(drifts);
    } else {
      spdlog::warn("the operators' times of a run are dropped: {}", drifts.status().ToString());
    }
    if (!calibration.drifts.empty()) SaveTimes();
  }
  const std::vector<PredictionError> transfers = RecordTransfers(run);
  calibration.includes_transfers = !transfers.empty();
  calibration.drifts.insert(calibration.drifts.end(), transfers.begin(), transfers.end());
  SortByError(&calibration.drifts);
  return calibration;
}

std::vector<PredictionError> CalibratedPlanner::RecordTransfers(const Run& run) {
  absl::MutexLock lock(&communication_mutex_);
  const auto found = communication_.find(CommunicationKey(*run.devices));
  if (found == communication_.end()) return {};
  v1::CommunicationProfile corrected = found->second;
  absl::StatusOr<std::vector<PredictionError>> drifts =
      CalibrateCommunication(*run.programs, run.times, *run.devices, &corrected);
  if (!drifts.ok()) {
    spdlog::warn("the messages' times of a run are dropped: {}", drifts.status().ToString());
    return {};
  }
  if (drifts->empty()) return {};
  found->second = std::move(corrected);
  SaveCommunication();
  return *std::move(drifts);
}

void CalibratedPlanner::SaveCommunication() {
  AnalyticCost analytic;
  absl::Status status =
      store_->PutBlob(kCommunicationBlob, SaveProfile(MeasuredCost(&analytic), communication_));
  if (!status.ok()) spdlog::warn("measured messages were not saved: {}", status.ToString());
}

void CalibratedPlanner::SaveTimes() {
  absl::Status status = store_->PutBlob(kTimesBlob, cost_.Save());
  if (!status.ok()) spdlog::warn("operator times were not saved: {}", status.ToString());
}

std::optional<CostModel::Times> CalibratedPlanner::MeasureOn(const OpDef& def,
                                                             const NodeTypes& shard,
                                                             const v1::Device& device) {
  if (current_ == nullptr || seconds_left_ <= 0) return std::nullopt;
  auto it = current_->measure_on.find(device.model());
  if (it == current_->measure_on.end()) return std::nullopt;
  v1::MeasureRequest request;
  for (v1::Program& program : OperatorPrograms(def, shard)) {
    if (program.arena_bytes() > kMaxMeasuredBytes) return std::nullopt;
    *request.add_programs() = std::move(program);
  }
  request.set_repetitions(kRepetitions);
  const double start = MonotonicSeconds();
  absl::StatusOr<v1::MeasureReply> reply =
      it->second->Measure(request, absl::Seconds(std::max(seconds_left_, 1.0)));
  seconds_left_ -= MonotonicSeconds() - start;
  if (!reply.ok()) {
    // If a worker cannot measure, planning continues with the analytic model.
    spdlog::warn("measuring '{}' failed: {}", def.name, reply.status().ToString());
    seconds_left_ = 0;
    return std::nullopt;
  }
  if (reply->seconds_size() != request.programs_size() || reply->seconds(0) < 0) {
    return std::nullopt;
  }
  CostModel::Times times;
  times.forward = reply->seconds(0);
  if (reply->seconds_size() > 1) {
    if (reply->seconds(1) < 0) return std::nullopt;
    times.backward = reply->seconds(1);
  }
  return times;
}

absl::Status CalibratedPlanner::WaitForTurn(const Request& request) {
  while (true) {
    {
      absl::MutexLock lock(&turn_mutex_);
      const auto is_free = [this] {
        turn_mutex_.AssertHeld();
        return !planning_;
      };
      if (turn_mutex_.AwaitWithTimeout(absl::Condition(&is_free), kStopPollInterval)) {
        planning_ = true;
        return absl::OkStatus();
      }
    }
    if (request.stop && request.stop()) {
      return absl::CancelledError(
          "the plan was given up before its turn came: another one is being made; ask again, or "
          "cancel the job whose plan takes so long");
    }
  }
}

void CalibratedPlanner::EndTurn() {
  absl::MutexLock lock(&turn_mutex_);
  planning_ = false;
}

absl::StatusOr<v1::Plan> CalibratedPlanner::MakeExclusive(const Request& request,
                                                          std::unique_ptr<Simulation>* simulation) {
  if (absl::Status s = WaitForTurn(request); !s.ok()) return s;
  const absl::Cleanup end_turn = [this] { EndTurn(); };
  absl::MutexLock lock(&mutex_);
  const size_t known = cost_.size();
  // Measurements of the request's profile come first, then stored and new ones.
  MeasuredCost told(&analytic_,
                    [this](const OpDef& def, const NodeTypes& shard,
                           const v1::Device& device) -> std::optional<CostModel::Times> {
                      mutex_.AssertHeld();
                      if (!cost_.Has(def, shard, device)) {
                        std::optional<CostModel::Times> times = MeasureOn(def, shard, device);
                        if (!times.has_value()) return std::nullopt;
                        cost_.Record(def, shard, device, *times);
                      }
                      return cost_.Measure(def, shard, device);
                    });
  CommunicationProfiles told_communication;
  if (!request.profile.empty()) {
    absl::Status status = LoadProfile(request.profile, &told, &told_communication);
    if (!status.ok()) return status;
  }
  current_ = &request;
  seconds_left_ = measure_seconds_;
  MeasuredCost& cost = request.profile.empty() ? cost_ : told;
  PlanProblem problem;
  problem.registry = registry_;
  problem.graph = request.graph;
  problem.batch_size = request.batch_size;
  problem.machine = request.machine;
  problem.optimizer = request.optimizer;
  problem.cost = &cost;
  // The profile is of other devices; a topology describes these and takes precedence.
  const auto model = CommunicationModelOf(told_communication, problem.machine.devices);
  if (model != nullptr) problem.machine.communication = model;
  problem.workspace = workspace();
  problem.seconds = MonotonicSeconds;
  problem.stop = request.stop;
  problem.for_each = [this](int count, const std::function<void(int)>& work) {
    threads_.ForEach(count, work);
  };
  absl::StatusOr<v1::Plan> plan = MakePlan(problem, request.search);
  current_ = nullptr;
  if (cost_.size() > known) SaveTimes();
  if (plan.ok() && simulation != nullptr) {
    *simulation = std::make_unique<Simulation>(cost);
    (*simulation)->problem = std::move(problem);
    (*simulation)->problem.cost = &(*simulation)->cost;
    (*simulation)->problem.for_each = nullptr;
  }
  return plan;
}

absl::StatusOr<v1::Plan> CalibratedPlanner::Make(const Request& request,
                                                 std::shared_ptr<const Timeline>* timeline) {
  if (absl::Status s = ProveSubstitutions(*registry_, request.search); !s.ok()) return s;
  const bool keeps = !request.keep_page_as.empty(), asked = timeline != nullptr;
  std::unique_ptr<Simulation> simulation;
  absl::StatusOr<v1::Plan> plan = MakeExclusive(request, asked || keeps ? &simulation : nullptr);
  if (!plan.ok() || simulation == nullptr) return plan;
  // Without the lock: other plans can be made meanwhile.
  absl::StatusOr<std::shared_ptr<const Timeline>> simulated =
      SimulatePlan(simulation->problem, *plan);
  if (asked && !simulated.ok()) return simulated.status();
  if (asked) *timeline = *simulated;
  // A job does not fail for lack of a page.
  absl::Status unseen = simulated.status();
  if (keeps && unseen.ok()) {
    const absl::StatusOr<Graph> graph = GraphOf(*registry_, *request.graph, *plan);
    unseen = graph.status();
    if (graph.ok()) {
      unseen = store_->PutBlob(request.keep_page_as, RenderPlanPage(*plan, *graph, **simulated));
    }
  }
  if (!unseen.ok()) spdlog::warn("the plan's page was not kept: {}", unseen.ToString());
  return plan;
}

}  // namespace espalier
