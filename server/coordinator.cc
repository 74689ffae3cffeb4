#include "server/coordinator.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/net/authenticated_channel.h"
#include "base/net/listen_error.h"
#include "base/steady_clock.h"
#include "base/version.h"
#include "grpc_health/health.pb.h"
#include "ops/operators/register_all.h"
#include "server/access/access_control.h"
#include "server/access/identify.h"
#include "server/access/token_store.h"
#include "server/artifacts/quantize.h"
#include "server/coordinator_stores.h"
#include "server/grpc_limits.h"
#include "server/jobs/check_joining_worker.h"
#include "server/jobs/job_runner.h"
#include "server/jobs/planner_request_handler.h"
#include "server/jobs/worker_client.h"
#include "server/membership/rendezvous.h"
#include "server/membership/worker_registry.h"
#include "server/metrics/metrics.h"
#include "server/recordings/run_queries.h"
#include "server/replay/answer_store.h"
#include "server/replay/history_query.h"
#include "server/replay/replay_manager.h"
#include "server/replay/replay_planner.h"
#include "server/services/access_service.h"
#include "server/services/call_interceptor.h"
#include "server/services/services.h"
#include "server/sessions/session_manager.h"
#include "server/sessions/session_service.h"
#include "server/spool_reports.h"
#include "server/storage/storage_service.h"
#include "server/store/idempotency.h"

namespace espalier {
namespace {

constexpr absl::Duration kLeaseTick = absl::Milliseconds(200);
constexpr absl::Duration kDrain = absl::Seconds(2);
constexpr absl::Duration kFolderTick = absl::Seconds(1);
constexpr absl::Duration kStoreCheckpoint = absl::Seconds(30);
constexpr absl::Duration kForgetReplies = absl::Hours(24);
// Copies of the store on their way to a client.
constexpr char kBackupFolder[] = "backup.tmp";

}  // namespace

// In order of construction: later members use earlier ones.
struct Coordinator::Parts {
  explicit Parts(CoordinatorOptions given) : options(std::move(given)) {}

  CoordinatorOptions options;
  SystemClock system_clock;
  SteadyClock steady_clock;  // of workers' leases
  const Clock* clock = nullptr;
  OpRegistry operators;
  Metrics metrics;
  std::unique_ptr<SpoolReports> spool_reports;
  CoordinatorStores stores;
  std::unique_ptr<WorkerRegistry> workers;
  Rendezvous rendezvous;
  std::unique_ptr<CalibratedPlanner> planner;
  std::unique_ptr<PlannerRequestHandler> plans;
  std::unique_ptr<JobRunner> jobs;
  std::unique_ptr<RunQueries> runs;
  AttemptTools tools;  // of jobs and replays
  std::unique_ptr<ReplayPlanner> replay_planner;
  std::unique_ptr<AnswerStore> answers;
  std::unique_ptr<ReplayManager> replays;
  std::unique_ptr<HistoryQuery> history;
  std::unique_ptr<SessionManager> sessions;
  std::unique_ptr<TokenStore> tokens;  // null without an authority
  std::unique_ptr<AccessControl> access;
  std::unique_ptr<CallInterceptor> interceptor;
  std::vector<std::unique_ptr<grpc::Service>> services;
  std::vector<grpc::Service*> added;
  std::unique_ptr<grpc::Server> server;
  std::string grpc_address, loopback_address;
  absl::Time started;

  absl::Mutex mutex;
  absl::CondVar stopped;
  bool stop ABSL_GUARDED_BY(mutex) = false;
  bool draining ABSL_GUARDED_BY(mutex) = false;
  absl::Status folder_status ABSL_GUARDED_BY(mutex);
  std::string http_address ABSL_GUARDED_BY(mutex);
  std::function<std::vector<std::string>(const Caller&)> served_models ABSL_GUARDED_BY(mutex);
  std::function<absl::Status(const v1::Artifact&)> check_servable ABSL_GUARDED_BY(mutex);
  std::thread leases, upkeep;

  absl::Status Build();
  absl::Status BuildAccess();
  void FillStatus(const Caller& caller, v1::ClusterStatusReply* reply);
  void AddResources();
  void LeaseLoop();
  // Watches the data folder, keeps the store's log short and removes what is old. A thread of its
  // own: a disk may hang.
  void UpkeepLoop();
  void SetFolderStatus(const absl::Status& status);
  void ReportHealth() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
};

absl::Status Coordinator::Parts::Build() {
  clock = options.clock != nullptr ? options.clock : &system_clock;
  if (options.heartbeat <= absl::ZeroDuration()) options.heartbeat = options.lease / 4;
  spool_reports = std::make_unique<SpoolReports>(
      &metrics,
      [this](const std::string& job_id, const v1::JobMessage& message) {
        jobs->AddMessage(job_id, message);
      },
      [this](const std::string& job_id) { jobs->OnSpooled(job_id); });
  if (absl::Status s = stores.Open(options, clock, spool_reports.get()); !s.ok()) return s;
  std::error_code error;
  // Of a daemon that was killed.
  std::filesystem::remove_all(JoinPath(stores.root, kBackupFolder), error);
  RegisterAllOperators(operators);
  stores.artifacts->AddUser(
      [this] { return jobs != nullptr ? jobs->ArtifactsInUse() : std::vector<ArtifactUse>(); });
  workers = std::make_unique<WorkerRegistry>(
      options.clock != nullptr ? options.clock : &steady_clock, options.lease,
      [this] { return stores.store->NextEpoch(); },
      [this] {
        if (jobs != nullptr) jobs->WorkersChanged();
      },
      [this](const Member& worker, absl::string_view reason) {
        metrics.WorkerLost();
        spdlog::warn("worker lost id={} reason=\"{}\"", worker.lease.worker_id(),
                     std::string(reason));
      });
  planner =
      std::make_unique<CalibratedPlanner>(&operators, stores.store.get(), options.measure_seconds);
  const WorkerDialer dial = GrpcWorkerDialer(options.message_limit_bytes, options.tls);
  plans = std::make_unique<PlannerRequestHandler>(&operators, planner.get(), stores.artifacts.get(),
                                                  workers.get(), stores.store.get(), dial);
  tools.registry = &operators;
  tools.artifacts = stores.artifacts.get();
  tools.planner = planner.get();
  tools.workers = workers.get();
  tools.rendezvous = &rendezvous;
  tools.files = stores.files;
  tools.checkpoints = stores.checkpoints;
  tools.recordings = stores.recordings.get();
  tools.spool = stores.spool.get();
  tools.data_folder = &*stores.data_folder;
  tools.dial = dial;
  tools.dataset_roots = stores.dataset_roots.get();
  JobRunnerOptions runner;
  runner.input_folder = stores.job_folder->root();
  runner.keeps_pushed_examples = options.keeps_pushed_examples;
  runner.policy.max_attempts_without_progress = options.max_attempts_without_progress;
  runner.recovery_grace_period = options.recovery_grace_period;
  runner.grow_after = options.grow_after;
  runner.grow_if_left = options.grow_if_left;
  runner.record_bytes = options.record_bytes;
  runner.recordings_bytes = options.recordings_bytes;
  runner.disk = options.disk != nullptr ? options.disk : stores.Disk();
  jobs = std::make_unique<JobRunner>(runner, tools, stores.store.get(), clock, &metrics);
  const auto find_runs = [this](absl::string_view run, RunVersions versions, const Caller& caller) {
    return jobs->FindRuns(run, versions, caller);
  };
  runs = std::make_unique<RunQueries>(find_runs, stores.recordings.get(), stores.store.get());
  replay_planner = std::make_unique<ReplayPlanner>(tools, stores.store.get(), find_runs);
  answers = std::make_unique<AnswerStore>(stores.checkpoints);
  replays = std::make_unique<ReplayManager>(
      ReplayTools{&tools, replay_planner.get(), answers.get(), stores.store.get(), clock},
      stores.store.get());
  jobs->SetDeletionListener(replays.get());
  history = std::make_unique<HistoryQuery>(replay_planner.get(), stores.recordings.get(),
                                           stores.store.get(), answers.get());
  SessionManagerOptions sessions_of;
  sessions_of.registry = &operators;
  sessions_of.artifacts = stores.artifacts.get();
  sessions_of.planner = planner.get();
  sessions_of.files = stores.files;
  sessions_of.dataset_roots = stores.dataset_roots.get();
  sessions_of.clock = clock;
  sessions_of.cluster = {workers.get(), &rendezvous, dial};
  sessions_of.checkpoints = stores.checkpoints;
  sessions_of.data_folder = &*stores.data_folder;
  sessions = std::make_unique<SessionManager>(std::move(sessions_of));
  if (absl::Status s = BuildAccess(); !s.ok()) return s;
  services.push_back(MakeTrainingService(interceptor.get(), jobs.get()));
  services.push_back(MakeRecordingsService(interceptor.get(), runs.get(), replay_planner.get()));
  services.push_back(MakeReplayService(interceptor.get(), replays.get(), history.get()));
  services.push_back(NewSessionService(interceptor.get(), sessions.get()));
  services.push_back(MakePlannerService(interceptor.get(), plans.get()));
  services.push_back(MakeOpsService(interceptor.get(), &operators));
  services.push_back(MakeModelsService(
      interceptor.get(),
      {.operators = &operators, .artifacts = stores.artifacts.get(), .files = stores.files},
      stores.store.get(), [this](const v1::Artifact& model) {
        std::function<absl::Status(const v1::Artifact&)> check;
        {
          absl::MutexLock lock(&mutex);
          check = check_servable;
        }
        return check == nullptr ? absl::OkStatus() : check(model);
      }));
  v1::JoinReply joined;
  joined.set_heartbeat_seconds(absl::ToDoubleSeconds(options.heartbeat));
  joined.set_lease_seconds(absl::ToDoubleSeconds(options.lease));
  joined.set_data_dir(stores.root);
  if (stores.object_store != nullptr) joined.set_checkpoint_store(options.checkpoint_store);
  services.push_back(MakeClusterService(
      interceptor.get(), workers.get(), &rendezvous,
      {.joined = std::move(joined),
       .check_worker = [dial, folder = stores.data_dir,
                        streams = options.checkpoint_store == kStreamedStore](
                           const v1::JoinRequest& request) -> absl::StatusOr<bool> {
         const absl::StatusOr<bool> shares = CheckJoiningWorker(dial, folder, request);
         return streams && shares.ok() ? false : shares;
       },
       .status = [this](const Caller& caller,
                        v1::ClusterStatusReply* reply) { FillStatus(caller, reply); },
       .store = stores.store.get(),
       .backup_folder = JoinPath(stores.root, kBackupFolder)}));
  services.push_back(NewStorageService({.interceptor = interceptor.get(),
                                        .workers = workers.get(),
                                        .rendezvous = &rendezvous,
                                        .data_folder = &*stores.data_folder,
                                        .uploads = stores.uploads.get()}));
  return absl::OkStatus();
}

absl::Status Coordinator::Parts::BuildAccess() {
  if (options.authority != nullptr) {
    absl::StatusOr<std::unique_ptr<TokenStore>> opened =
        TokenStore::Open(stores.store.get(), clock);
    if (!opened.ok()) return opened.status();
    tokens = *std::move(opened);
  }
  access = std::make_unique<AccessControl>(IdentifyByKeyOrToken(options.identify, tokens.get()));
  if (tokens != nullptr)
    access->AcceptCertificates(IdentifyWorkers(options.authority, tokens.get()));
  AddResources();
  interceptor = std::make_unique<CallInterceptor>(
      &metrics, access.get(),
      CallInterceptorOptions{.leads = options.leads,
                             .open_probes = options.open_probes,
                             .max_calls = options.limits.max_calls,
                             .idle = options.limits.idle});
  services.push_back(MakeAccessService(interceptor.get(),
                                       {.tokens = tokens.get(),
                                        .authority = options.authority,
                                        .clock = clock,
                                        .worker_certificate_life = options.worker_certificate_life,
                                        .advertise = options.advertise,
                                        .grpc_address = [this] { return grpc_address; },
                                        .http_address =
                                            [this] {
                                              absl::MutexLock lock(&mutex);
                                              return http_address;
                                            }}));
  return absl::OkStatus();
}

void Coordinator::Parts::AddResources() {
  access->AddResources(
      ResourceKind::kWorker, [this](const std::string& id) { return workers->OwnerOf(id); },
      [](const std::string& id, const Caller&) {
        // A worker whose certificate or key has become another one joins again at this code.
        return absl::FailedPreconditionError(
            absl::StrCat("worker '", id.substr(0, 300),
                         "' joined with another certificate or key than this call shows"));
      });
  access->AddResources(
      ResourceKind::kJob, [this](const std::string& id) { return jobs->OwnerOf(id); },
      [](const std::string& id, const Caller&) { return JobNotFound(id); });
  access->AddResources(
      ResourceKind::kSession, [this](const std::string& id) { return sessions->OwnerOf(id); },
      [](const std::string& id, const Caller&) { return SessionNotFound(id); });
  access->AddResources(
      ResourceKind::kReplay, [this](const std::string& id) { return replays->OwnerOf(id); },
      [](const std::string& id, const Caller&) { return ReplayNotFound(id); });
  const NotFoundError not_found = [](const std::string& name, const Caller&) {
    return ArtifactNotFound(name);
  };
  access->AddResources(
      ResourceKind::kArtifact,
      [this](const std::string& name) { return stores.artifacts->OwnerOf(name); }, not_found);
  // The name of a model is its job's from the start.
  access->AddResources(
      ResourceKind::kArtifact,
      [this](const std::string& name) { return jobs->OwnerOfOutput(name); }, not_found);
}

void Coordinator::Parts::FillStatus(const Caller& caller, v1::ClusterStatusReply* reply) {
  reply->set_version(kEspalierVersion);
  reply->set_uptime_seconds(absl::ToDoubleSeconds(clock->Now() - started));
  for (const auto& [state, count] : jobs->CountByState(caller)) {
    (*reply->mutable_jobs_by_state())[state] = count;
  }
  reply->set_grpc_address(grpc_address);
  std::function<std::vector<std::string>(const Caller&)> list;
  {
    absl::MutexLock lock(&mutex);
    reply->set_http_address(http_address);
    list = served_models;
  }
  if (!list) return;
  for (const std::string& name : list(caller)) reply->add_served_models(name);
}

void Coordinator::Parts::LeaseLoop() {
  while (true) {
    {
      absl::MutexLock lock(&mutex);
      if (!stop) stopped.WaitWithTimeout(&mutex, kLeaseTick);
      if (stop) return;
    }
    workers->Expire();
    const WorkerRegistry::Counts counts = workers->Count();
    metrics.SetWorkers({{"idle", counts.idle},
                        {"busy", counts.busy},
                        {"draining", counts.draining},
                        {"dead", counts.dead},
                        {"left", counts.left}});
  }
}

void Coordinator::Parts::UpkeepLoop() {
  absl::Time checkpoint_at = absl::Now() + kStoreCheckpoint;
  absl::Time forget_at = absl::Now() + kForgetReplies;  // opening the store has done it, too
  while (true) {
    absl::Status there = stores.store->CheckPresent();
    if (there.ok()) there = stores.artifacts->CheckPresent();
    SetFolderStatus(there);
    if (there.ok() && absl::Now() >= checkpoint_at) {
      checkpoint_at = absl::Now() + kStoreCheckpoint;
      if (absl::Status s = stores.store->Checkpoint(); !s.ok()) spdlog::warn("{}", s.ToString());
      if (tokens != nullptr) tokens->WriteLastUses();
      stores.uploads->DropOld();
    }
    if (there.ok() && absl::Now() >= forget_at) {
      forget_at = absl::Now() + kForgetReplies;
      const absl::Status s = stores.store->ForgetRepliesBefore(absl::Now() - kRepliesKept);
      if (!s.ok()) spdlog::warn("old recorded replies stay: {}", s.ToString());
    }
    absl::MutexLock lock(&mutex);
    if (!stop) stopped.WaitWithTimeout(&mutex, kFolderTick);
    if (stop) return;
  }
}

void Coordinator::Parts::SetFolderStatus(const absl::Status& status) {
  absl::MutexLock lock(&mutex);
  if (status.ok() == folder_status.ok()) return;
  folder_status = status;
  metrics.SetDataFolderPresent(status.ok());
  if (status.ok()) {
    spdlog::info("the data folder {} is back", stores.root);
  } else {
    spdlog::error("not ready: {}", std::string(status.message()));
  }
  ReportHealth();
}

void Coordinator::Parts::ReportHealth() {
  if (server == nullptr || server->GetHealthCheckService() == nullptr) return;
  server->GetHealthCheckService()->SetServingStatus(!draining && folder_status.ok());
}

Coordinator::Coordinator(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Coordinator::~Coordinator() { Stop(); }

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Open(CoordinatorOptions options) {
  auto parts = std::make_unique<Parts>(std::move(options));
  absl::Status status = parts->Build();
  if (!status.ok()) return status;
  return std::unique_ptr<Coordinator>(new Coordinator(std::move(parts)));
}

void Coordinator::AddService(grpc::Service* service) { parts_->added.push_back(service); }

absl::Status Coordinator::Start() {
  Parts& parts = *parts_;
  parts.started = parts.clock->Now();
  grpc::EnableDefaultHealthCheckService(!parts.options.identify || parts.options.open_probes);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  // Reflection lists the health service; its descriptor is found because this links it in.
  grpc::health::v1::HealthCheckRequest::descriptor();
  grpc::ServerBuilder builder;
  if (parts.options.identify) builder.SetOption(WithoutReflection());
  int port = 0, loopback_port = 0;
  builder.AddListeningPort(parts.options.listen, ServerCredentials(parts.options.tls), &port);
  const size_t colon = parts.options.listen.rfind(':');
  const std::string host = parts.options.listen.substr(0, colon);
  const bool any = host == "0.0.0.0" || host == "[::]";
  const bool reached = !parts.options.tls.serves() && (any || IsLoopback(parts.options.listen));
  const bool second = parts.options.loopback_port && !reached;
  if (second) {
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &loopback_port);
  }
  builder.SetMaxReceiveMessageSize(parts.options.message_limit_bytes);
  builder.SetMaxSendMessageSize(parts.options.message_limit_bytes);
  SetGrpcLimits(parts.options.limits, &builder);
  if (parts.options.authority != nullptr) {
    // A connection ends before the certificate that it was made with: workers have the next one by
    // two thirds of its life. Running calls go on.
    builder.AddChannelArgument(
        GRPC_ARG_MAX_CONNECTION_AGE_MS,
        static_cast<int>(absl::ToInt64Milliseconds(parts.options.worker_certificate_life / 6)));
  }
  // Otherwise two processes on one port would each get a part of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  for (auto& service : parts.services) builder.RegisterService(service.get());
  for (grpc::Service* service : parts.added) builder.RegisterService(service);
  parts.server = builder.BuildAndStart();
  if (parts.server == nullptr || port == 0 || (second && loopback_port == 0)) {
    return CannotListen(second && port != 0 ? "127.0.0.1:0" : parts.options.listen);
  }
  parts.grpc_address = absl::StrCat(host, ":", port);
  if (second) {
    parts.loopback_address = absl::StrCat("127.0.0.1:", loopback_port);
  } else if (reached) {
    parts.loopback_address = absl::StrCat(any ? "127.0.0.1" : host, ":", port);
  }
  absl::Status status = parts.jobs->Start();
  if (!status.ok()) return status;
  if (parts.stores.spool != nullptr) parts.stores.spool->Start();
  if (status = parts.replays->Start(); !status.ok()) return status;
  parts.sessions->Start();
  parts.leases = std::thread([&parts] { parts.LeaseLoop(); });
  parts.upkeep = std::thread([&parts] { parts.UpkeepLoop(); });
  spdlog::info("coordinator version={} grpc={} data_dir={}", kEspalierVersion, parts.grpc_address,
               parts.options.data_dir);
  return absl::OkStatus();
}

void Coordinator::Stop() {
  Parts& parts = *parts_;
  {
    absl::MutexLock lock(&parts.mutex);
    parts.stop = true;
    parts.stopped.SignalAll();
  }
  if (parts.leases.joinable()) parts.leases.join();
  if (parts.upkeep.joinable()) parts.upkeep.join();
  parts.rendezvous.EndAll();
  Drain();
  if (parts.stores.artifact_objects != nullptr) parts.stores.artifact_objects->EndDownloads();
  // First, while their workers can still reach the services.
  parts.sessions->Stop();
  *parts.stores.spool_cancelled = true;
  parts.replays->Stop();
  if (parts.stores.spool != nullptr) parts.stores.spool->Stop();
  parts.jobs->Stop();
  // Not earlier: a job whose model was not stored for another reason would fail.
  if (parts.stores.artifact_objects != nullptr) parts.stores.artifact_objects->Stop();
  if (parts.server != nullptr) {
    parts.server->Shutdown(absl::ToChronoTime(absl::Now() + kDrain));
    parts.server->Wait();
    parts.server.reset();
  }
}

void Coordinator::Drain() {
  absl::MutexLock lock(&parts_->mutex);
  parts_->draining = true;
  parts_->ReportHealth();
}

absl::Status Coordinator::DataFolderStatus() const {
  absl::MutexLock lock(&parts_->mutex);
  return parts_->folder_status;
}

std::string Coordinator::grpc_address() const { return parts_->grpc_address; }

std::string Coordinator::loopback_address() const { return parts_->loopback_address; }

void Coordinator::SetHttpAddress(std::string address) {
  absl::MutexLock lock(&parts_->mutex);
  parts_->http_address = std::move(address);
}

void Coordinator::SetServableCheck(std::function<absl::Status(const v1::Artifact&)> check) {
  absl::MutexLock lock(&parts_->mutex);
  parts_->check_servable = std::move(check);
}

void Coordinator::SetServedModels(std::function<std::vector<std::string>(const Caller&)> list) {
  absl::MutexLock lock(&parts_->mutex);
  parts_->served_models = std::move(list);
}

Metrics& Coordinator::metrics() { return parts_->metrics; }
ArtifactStore& Coordinator::artifacts() { return *parts_->stores.artifacts; }
JobStore& Coordinator::store() { return *parts_->stores.store; }
WorkerRegistry& Coordinator::workers() { return *parts_->workers; }
const FolderCheckpointStore& Coordinator::data_folder() const {
  return *parts_->stores.data_folder;
}
Rendezvous& Coordinator::rendezvous() { return parts_->rendezvous; }
JobRunner& Coordinator::jobs() { return *parts_->jobs; }
CalibratedPlanner& Coordinator::planner() { return *parts_->planner; }
const OpRegistry& Coordinator::operators() const { return parts_->operators; }
AccessControl& Coordinator::access() { return *parts_->access; }
CallInterceptor& Coordinator::interceptor() { return *parts_->interceptor; }

}  // namespace espalier
