#include "tests/simulation/coordinator_simulation.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "ops/graph/builder.h"
#include "ops/graph/graph_proto.h"
#include "ops/operators/register_all.h"

namespace espalier {
namespace {

constexpr absl::Duration kRealWait = absl::Minutes(1);
// A job that loses its workers again and again is not to fail.
constexpr int kManyAttempts = 1000;

// The simulation's own calls have no reason to fail.
void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << "the simulation cannot go on: " << status << std::endl;
  std::abort();
}

}  // namespace

// An attempt that lasts until the simulation finishes it, or it is interrupted.
class SimulatedAttempt : public Attempt {
 public:
  SimulatedAttempt(CoordinatorSimulation* simulation, const AttemptTools& tools,
                   const AttemptTask& task, AttemptObserver* observer)
      : Attempt(tools, task, observer), simulation_(*simulation), observer_(*observer) {
    run_.job = task.record.job.id();
    run_.attempt = task.attempt;
    for (const Member& member : task.members) run_.workers.push_back(member.lease.worker_id());
    facts_.total_steps = task.record.job.total_steps();
  }

  AttemptEnd Run() override {
    simulation_.Begin(run_);
    observer_.OnPlanned(run_.job, run_.attempt, facts_);
    observer_.OnRunning(run_.job, run_.attempt);
    return simulation_.Await(run_);
  }
  void Stop() override { simulation_.Interrupt(run_, ""); }
  void WorkerLost(const std::string& worker_id, const std::string& reason) override {
    simulation_.Interrupt(run_, absl::StrCat(worker_id, ": ", reason));
  }
  void RequestCheckpoint() override {}

 private:
  CoordinatorSimulation& simulation_;
  AttemptObserver& observer_;
  CoordinatorSimulation::Run run_;
  PlanFacts facts_;
};

CoordinatorSimulation::CoordinatorSimulation(const Options& options)
    : options_(options), random_(options.seed), files_(NewPosixFileSystem()) {
  std::filesystem::remove_all(options_.folder);
  std::filesystem::create_directories(options_.folder);
  const std::string text = options_.folder + "/text";
  std::ofstream(text) << std::string(4096, 'e');
  checkpoints_ = std::make_unique<FolderCheckpointStore>(*files_, options_.folder + "/checkpoints");
  data_folder_ = std::make_unique<FolderCheckpointStore>(*files_, options_.folder);
  RegisterAllOperators(operators_);
  roots_ = *DatasetRoots::Create({options_.folder});
  store_ = *SqliteStore::Open(options_.folder + "/jobs.db");
  artifacts_ =
      *ArtifactStore::Open(options_.folder + "/artifacts", files_.get(), store_.get(), &clock_);
  workers_ = std::make_unique<WorkerRegistry>(
      &clock_, options_.lease, [epoch = uint64_t{0}]() mutable { return ++epoch; },
      [this] {
        if (runner_ != nullptr) runner_->WorkersChanged();
      });

  // A next-byte model.
  GraphBuilder builder(operators_, "tiny");
  const ValueId tokens = builder.Input("tokens", DType::kI32, {-1, 8});
  const ValueId targets = builder.Input("targets", DType::kI32, {-1, 8});
  const ValueId table =
      builder.Parameter("table", DType::kF32, {256, 4}, {Initializer::kNormal, 0.1});
  const ValueId head =
      builder.Parameter("head", DType::kF32, {256, 4}, {Initializer::kNormal, 0.1});
  const ValueId logits = builder.Op("linear", {builder.Op("embedding", {tokens, table}), head});
  builder.Output("loss", builder.Op("sparse_categorical_crossentropy", {logits, targets}));
  *spec_.mutable_graph() = ToProto(*builder.Build());
  spec_.mutable_dataset()->set_uri(text);
  spec_.mutable_dataset()->set_format(v1::Dataset::TEXT);
  spec_.mutable_dataset()->set_sequence_length(8);
  spec_.set_batch_size(4);
  spec_.set_steps(10);
  spec_.mutable_optimizer()->set_name("sgd");
  spec_.mutable_optimizer()->mutable_learning_rate()->set_peak(0.1);
  spec_.mutable_search()->set_strategy(v1::SearchOptions::SINGLE_DEVICE);
  Open();
}

CoordinatorSimulation::~CoordinatorSimulation() { runner_.reset(); }

void CoordinatorSimulation::Open() {
  AttemptTools tools;
  tools.registry = &operators_;
  tools.artifacts = artifacts_.get();
  tools.workers = workers_.get();
  tools.files = files_.get();
  tools.checkpoints = checkpoints_.get();
  tools.data_folder = data_folder_.get();
  tools.dataset_roots = roots_.get();
  tools.dial = [](const Member&) { return nullptr; };
  JobRunnerOptions options;
  options.input_folder = options_.folder + "/inputs";
  options.policy.max_attempts_without_progress = kManyAttempts;
  options.recovery_grace_period = absl::ZeroDuration();
  options.new_attempt = [this](const AttemptTools& given, AttemptTask task,
                               AttemptObserver* observer) -> std::unique_ptr<Attempt> {
    return std::make_unique<SimulatedAttempt>(this, given, task, observer);
  };
  runner_ =
      std::make_unique<JobRunner>(std::move(options), tools, store_.get(), &clock_, &metrics_);
  Must(runner_->Start());
}

void CoordinatorSimulation::Restart() {
  runner_->Stop();
  runner_.reset();
  store_.reset();
  store_ = *SqliteStore::Open(options_.folder + "/jobs.db");
  artifacts_ =
      *ArtifactStore::Open(options_.folder + "/artifacts", files_.get(), store_.get(), &clock_);
  Open();
}

void CoordinatorSimulation::Join(int workers) {
  for (int i = 0; i < workers; ++i) {
    v1::JoinRequest request;
    request.set_name(absl::StrCat("worker-", ++joined_));
    request.set_address(absl::StrCat("host-", joined_, ":1"));
    request.set_host(absl::StrCat("host-", joined_));
    request.set_protocol_version(kProtocolVersion);
    request.set_call_key(std::string(32, 'k'));
    v1::Device* const device = request.mutable_device();
    device->set_kind(v1::Device::CPU);
    device->set_memory_bytes(int64_t{1} << 30);
    device->set_matmul_flops(1e10);
    device->set_memory_bandwidth(1e10);
    absl::StatusOr<v1::Lease> lease = workers_->Join(request);
    Must(lease.status());
    leases_.push_back(*lease);
  }
}

void CoordinatorSimulation::Kill(size_t worker) {
  leases_.erase(leases_.begin() + static_cast<std::ptrdiff_t>(worker));
}

void CoordinatorSimulation::Advance(absl::Duration by) {
  const absl::Duration most = options_.lease / 4;
  while (by > absl::ZeroDuration()) {
    const absl::Duration step = std::min(by, most);
    clock_.Advance(step);
    by -= step;
    for (const v1::Lease& lease : leases_) {
      v1::HeartbeatRequest request;
      *request.mutable_lease() = lease;
      Must(workers_->Heartbeat(request).status());
    }
    workers_->Expire();
  }
}

std::string CoordinatorSimulation::Submit(const v1::TrainingSpec& spec, const Caller& caller) {
  v1::SubmitRequest request;
  *request.mutable_spec() = spec;
  v1::SubmitReply reply;
  Must(runner_->Submit(request, caller, &reply));
  return reply.job_id();
}

void CoordinatorSimulation::Restore(const std::vector<v1::Job>& jobs) {
  runner_->Stop();
  runner_.reset();
  std::vector<JobWrite> writes(jobs.size());
  std::vector<JobStore::NamedWrite> named;
  for (size_t i = 0; i < jobs.size(); ++i) {
    writes[i].create = true;
    writes[i].job.emplace();
    writes[i].job->job = jobs[i];
    writes[i].job->job.set_id(absl::StrCat("job-", i + 1));
    named.emplace_back(writes[i].job->job.id(), &writes[i]);
  }
  for (const absl::Status& status : store_->WriteAll(named)) Must(status);
  Open();
}

void CoordinatorSimulation::Begin(const Run& run) {
  absl::MutexLock lock(&mutex_);
  const auto violated = [&](const std::string& what) {
    mutex_.AssertHeld();
    violations_.push_back(absl::StrCat(run.job, ", attempt ", run.attempt, ": ", what));
  };
  if (!begun_.insert(KeyOf(run)).second) violated("has begun before");
  if (finished_.contains(run.job)) violated("the job is over");
  const auto other = running_.lower_bound({run.job, 0});
  if (other != running_.end() && other->first.first == run.job) {
    violated("another attempt of the job runs");
  }
  for (const std::string& worker : run.workers) {
    const auto [busy, idle] = busy_.try_emplace(worker, run.job);
    if (!idle) violated(absl::StrCat(worker, " works for ", busy->second));
  }
  started_.push_back(run.job);
  Attempted& attempted = running_[KeyOf(run)];
  attempted.workers = run.workers;
  attempted.stop = stopped_.contains(KeyOf(run));
  changed_.SignalAll();
}

AttemptEnd CoordinatorSimulation::Await(const Run& run) {
  absl::MutexLock lock(&mutex_);
  Attempted& attempted = running_.at(KeyOf(run));
  while (!attempted.finish && !attempted.stop && attempted.lost.empty()) changed_.Wait(&mutex_);
  AttemptEnd end;
  if (attempted.stop) {
    end = AttemptEnd::Stopped();
  } else if (!attempted.lost.empty()) {
    end.kind = AttemptEnd::kWorkersLost;
    end.reason = attempted.lost;
  } else {
    end.kind = AttemptEnd::kFinished;
    end.output_model = run.job;
    finished_.insert(run.job);
  }
  for (const std::string& worker : run.workers) busy_.erase(worker);
  running_.erase(KeyOf(run));
  changed_.SignalAll();
  return end;
}

void CoordinatorSimulation::Interrupt(const Run& run, const std::string& lost) {
  absl::MutexLock lock(&mutex_);
  // Perhaps before it has begun. Losses of workers are told again.
  if (lost.empty()) stopped_.insert(KeyOf(run));
  const auto found = running_.find(KeyOf(run));
  if (found == running_.end()) return;
  if (lost.empty()) {
    found->second.stop = true;
  } else {
    found->second.lost = lost;
  }
  changed_.SignalAll();
}

std::vector<CoordinatorSimulation::Run> CoordinatorSimulation::Running() const {
  absl::MutexLock lock(&mutex_);
  std::vector<Run> runs;
  for (const auto& [key, attempted] : running_) {
    runs.push_back({key.first, key.second, attempted.workers});
  }
  return runs;
}

bool CoordinatorSimulation::Finish(const Run& run) {
  absl::MutexLock lock(&mutex_);
  const auto found = running_.find(KeyOf(run));
  if (found == running_.end()) return false;
  found->second.finish = true;
  changed_.SignalAll();
  return true;
}

bool CoordinatorSimulation::AwaitRunning(size_t attempts) const {
  absl::MutexLock lock(&mutex_);
  const absl::Time deadline = absl::Now() + kRealWait;
  while (running_.size() != attempts && absl::Now() < deadline) {
    changed_.WaitWithDeadline(&mutex_, deadline);
  }
  return running_.size() == attempts;
}

std::vector<std::string> CoordinatorSimulation::started() const {
  absl::MutexLock lock(&mutex_);
  return started_;
}

std::vector<std::string> CoordinatorSimulation::violations() const {
  absl::MutexLock lock(&mutex_);
  return violations_;
}

}  // namespace espalier
