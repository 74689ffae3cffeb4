#include "server/daemon.h"

#include <grpcpp/impl/service_type.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/net/api_keys.h"
#include "base/net/credential_watch.h"
#include "base/version.h"
#include "server/access/access_control.h"
#include "server/artifacts/artifact_store.h"
#include "server/coordinator.h"
#include "server/daemon_credentials.h"
#include "server/daemon_standby.h"
#include "server/distillation/distillation_runner.h"
#include "server/distillation/distillation_service.h"
#include "server/http/gateway/gateway.h"
#include "server/inference/models/artifact_loader.h"
#include "server/inference/prediction/artifact_graph_loader.h"
#include "server/inference/services/inference_service.h"
#include "server/inference/services/open_inference_service.h"
#include "server/jobs/calibrated_planner.h"
#include "server/jobs/job_runner.h"
#include "server/jobs/worker_client.h"
#include "server/local_workers.h"
#include "server/membership/rendezvous.h"
#include "server/membership/worker_registry.h"
#include "server/metrics/metrics.h"
#include "server/services/call_interceptor.h"

namespace espalier {
namespace {

constexpr absl::Duration kWorkersJoin = absl::Seconds(60);
// For clients to read why their requests were cut off.
constexpr absl::Duration kLastReads = absl::Seconds(2);

HttpCertificates ForHttp(const TransportSecurity& tls) {
  const TlsPem pem = tls.pem();
  // Where certificates are optional, they are workers', which do not use HTTP.
  return {pem.certificate, pem.key, tls.client_certificates_optional() ? "" : pem.client_ca};
}

// Leaves one core to the threads that send tokens. A kernel waits for all its threads, so one that
// shares its core with a sender delays every step (measured on two cores: 0.9 ms per token with one
// thread, 1.2 and more with two).
int ServingThreads(int given) {
  return given > 0 ? given : std::max(1, static_cast<int>(std::thread::hardware_concurrency()) - 1);
}

// Waits until `done` or a deadline. Returns the first signal received; 0: none.
template <typename Done>
int WaitForSignal(const sigset_t& signals, absl::Time deadline, Done&& done) {
  const timespec tick = {0, 20'000'000};
  while (!done() && absl::Now() < deadline) {
    if (const int caught = sigtimedwait(&signals, nullptr, &tick); caught > 0) return caught;
  }
  return 0;
}

CoordinatorOptions ForCoordinator(const DaemonOptions& options,
                                  const DaemonCredentials& credentials) {
  CoordinatorOptions out;
  out.data_dir = options.data_dir;
  out.checkpoint_store = options.checkpoint_store;
  out.spool = options.spool;
  out.record_bytes = options.record_bytes;
  out.recordings_bytes = options.recordings_bytes;
  out.artifact_store = options.artifact_store;
  out.dataset_roots = options.dataset_roots;
  out.private_files = {options.api_key_file,   options.tls.certificate, options.tls.key,
                       options.tls.ca,         options.tls.client_ca,   options.serving_swap_dir,
                       options.worker_swap_dir};
  out.listen = options.listen;
  out.lease = options.lease;
  out.recovery_grace_period = options.worker_return;
  out.measure_seconds = options.measure_seconds;
  out.limits = options.limits;
  out.open_probes = options.open_probes;
  out.tls = credentials.tls;
  if (credentials.automatic != nullptr) out.authority = &credentials.automatic->authority();
  out.worker_certificate_life = options.worker_certificate_life;
  out.advertise = options.advertise;
  out.loopback_port = options.local_workers > 0;
  if (credentials.keys.has_value()) {
    out.identify = [keys = *credentials.keys](const std::string& authorization) {
      return keys.Identify(authorization);
    };
  }
  return out;
}

// Without keys everyone who reaches the port is an admin of what keys kept apart.
absl::Status CheckOwners(const DaemonOptions& options, Coordinator& coordinator) {
  if (!options.api_key_file.empty() || options.insecure) return absl::OkStatus();
  std::string owner;
  for (const v1::Artifact& artifact : coordinator.artifacts().List()) {
    if (owner.empty()) owner = artifact.owner();
  }
  absl::StatusOr<std::vector<JobRecord>> jobs = coordinator.store().List();
  if (!jobs.ok()) return jobs.status();
  for (const JobRecord& record : *jobs) {
    if (owner.empty()) owner = record.job.owner();
  }
  if (owner.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "--data-dir=", options.data_dir, " has jobs or artifacts that belong to owners (", owner,
      "), and without API keys everyone who reaches the daemon could use them: "
      "give --api-key-file, as before, or pass --insecure"));
}

// Members are in the order in which they are made; each may use those above it.
class Daemon {
 public:
  Daemon(const DaemonOptions& options, DaemonCredentials credentials,
         std::unique_ptr<Coordinator> coordinator, const WorkerDialer& dial,
         SharedStore* shared_store);

  // Registers the gRPC services. Call before Serve.
  absl::Status AddServices();

  // Starts everything, serves until a signal, drains. Stop must follow.
  absl::Status Serve(const sigset_t& signals);

  // Ends everything. `status`: the result of Serve.
  void Stop(const absl::Status& status);

 private:
  ArtifactLoaderOptions ForLoader(const WorkerDialer& dial);
  DistillationDependencies ForDistillation();
  GatewayOptions ForGateway();
  // Tells AccessControl to whom models and boost-tunings belong.
  void AddResources();

  bool ready() const {
    return models_.restored() && !models_.draining() && coordinator_->DataFolderStatus().ok();
  }
  absl::Status StartHttp();
  absl::Status StartLocalWorkers();
  void WatchCredentials();
  // Waits until the local workers have joined and the models of the last run are loaded. Returns
  // the signal that came meanwhile; 0: none.
  int WaitUntilReady(const sigset_t& signals);
  absl::Status AnnounceReady();
  // Lets running requests finish and their answers be read.
  void Drain(const sigset_t& signals);

  const DaemonOptions options_;
  const DaemonCredentials credentials_;
  SharedStore* const shared_store_;  // null: nobody stands by
  std::unique_ptr<Coordinator> coordinator_;
  SystemClock clock_;
  ArtifactLoader loader_;
  const std::unique_ptr<GraphLoader> graphs_;
  ServingMetrics serving_metrics_;
  ModelServer models_;
  std::unique_ptr<grpc::Service> inference_;
  std::unique_ptr<grpc::Service> open_inference_;
  const std::unique_ptr<FileSystem> files_;
  DistillationRunner distillations_;
  std::unique_ptr<grpc::Service> distillation_;
  Gateway gateway_;
  std::unique_ptr<HttpServer> http_;
  std::string http_address_;
  std::unique_ptr<LocalWorkers> workers_;
  std::optional<CredentialWatch> credential_watch_;
};

Daemon::Daemon(const DaemonOptions& options, DaemonCredentials credentials,
               std::unique_ptr<Coordinator> coordinator, const WorkerDialer& dial,
               SharedStore* shared_store)
    : options_(options),
      credentials_(std::move(credentials)),
      shared_store_(shared_store),
      coordinator_(std::move(coordinator)),
      loader_(ForLoader(dial)),
      graphs_(NewArtifactGraphLoader(
          {.operators = &coordinator_->operators(),
           .find = [this](const std::string& name) { return coordinator_->artifacts().Find(name); },
           .folder =
               [this](const std::string& name) { return coordinator_->artifacts().Pin(name); },
           .threads = ServingThreads(options_.serving_threads),
           .memory = loader_.memory(),
           .clock = &clock_})),
      serving_metrics_(&coordinator_->metrics().registry()),
      models_(
          {.loader = &loader_,
           .graphs = graphs_.get(),
           .store = &coordinator_->store(),
           .clock = &clock_,
           .metrics = &serving_metrics_,
           .default_seed = clock_.NowUnixMillis(),
           .pin =
               [this](const std::string& name) { return coordinator_->artifacts().Pinned(name); },
           .share_prefixes = options_.share_prefixes}),
      files_(NewPosixFileSystem()),
      distillations_(ForDistillation()),
      gateway_(ForGateway()) {}

ArtifactLoaderOptions Daemon::ForLoader(const WorkerDialer& dial) {
  return {.operators = &coordinator_->operators(),
          .folder = [this](const std::string& name) { return coordinator_->artifacts().Pin(name); },
          .threads = ServingThreads(options_.serving_threads),
          .memory_limit = options_.serving_memory,
          .swap_dir = options_.serving_swap_dir,
          .cluster = {.workers = &coordinator_->workers(),
                      .rendezvous = &coordinator_->rendezvous(),
                      .dial = dial,
                      .data_folder = &coordinator_->data_folder(),
                      .next_attempt = [this] { return coordinator_->store().NextEpoch(); }},
          .communication =
              [this](const std::vector<v1::Device>& devices) {
                return coordinator_->planner().Communication(devices);
              }};
}

DistillationDependencies Daemon::ForDistillation() {
  return {.operators = &coordinator_->operators(),
          .artifacts = &coordinator_->artifacts(),
          .store = &coordinator_->store(),
          .jobs = &coordinator_->jobs(),
          .models = &models_,
          .files = files_.get(),
          .clock = &clock_,
          .describe = [this](const std::string& name) { return loader_.Describe(name); }};
}

GatewayOptions Daemon::ForGateway() {
  return {.models = &models_,
          .metrics = &serving_metrics_,
          .exposition = [this] { return coordinator_->metrics().Expose(); },
          .access = &coordinator_->access(),
          .open_probes = options_.open_probes,
          .ready = [this] { return ready(); },
          .response_store_bytes = static_cast<size_t>(options_.response_store_bytes),
          .clock = &clock_,
          .version = kEspalierVersion,
          .origins = {.only_loopback_hosts =
                          !credentials_.keys.has_value() && IsLoopback(options_.http_listen),
                      .only_allowed_origins = !credentials_.keys.has_value(),
                      .allowed = options_.http_allowed_origins}};
}

void Daemon::AddResources() {
  AccessControl& access = coordinator_->access();
  access.AddResources(
      ResourceKind::kServedModel, [this](const std::string& name) { return models_.OwnerOf(name); },
      [this](const std::string& name, const Caller& caller) {
        return models_.NotServedTo(caller, name);
      });
  access.AddResources(
      ResourceKind::kDistillation,
      [this](const std::string& id) { return distillations_.OwnerOf(id); },
      [](const std::string& id, const Caller&) { return DistillationNotFound(id); });
  access.AddResources(
      ResourceKind::kArtifact,
      [this](const std::string& name) { return distillations_.OwnerOfOutput(name); },
      [](const std::string& name, const Caller&) { return ArtifactNotFound(name); });
}

absl::Status Daemon::AddServices() {
  AddResources();
  coordinator_->artifacts().AddUser([this] { return models_.ArtifactsInUse(); });
  coordinator_->artifacts().AddUser([this] { return distillations_.ArtifactsInUse(); });
  inference_ = NewInferenceService(&models_, &coordinator_->interceptor(), &serving_metrics_);
  coordinator_->AddService(inference_.get());
  if (absl::Status s = models_.LoadServedList(); !s.ok()) {
    spdlog::error("the models of the last run are not served: {}", s.ToString());
  }
  open_inference_ = NewOpenInferenceService(
      &models_, &coordinator_->interceptor(), [this] { return ready(); }, kEspalierVersion);
  coordinator_->AddService(open_inference_.get());
  if (absl::Status s = distillations_.Open(); !s.ok()) return s;
  distillation_ = NewDistillationService(&coordinator_->interceptor(), &distillations_);
  coordinator_->AddService(distillation_.get());
  coordinator_->SetServableCheck([this](const v1::Artifact& model) {
    // Adapters are served with a model.
    const auto& files = model.files();
    const bool adapter =
        std::find(files.begin(), files.end(), "adapter_config.json") != files.end();
    const bool graph = std::find(files.begin(), files.end(), "graph.pb") != files.end();
    return adapter || graph ? absl::OkStatus() : loader_.Describe(model.name()).status();
  });
  coordinator_->SetServedModels([this](const Caller& caller) { return models_.Names(caller); });
  return absl::OkStatus();
}

absl::Status Daemon::StartHttp() {
  if (options_.http_listen.empty()) return absl::OkStatus();
  const size_t colon = options_.http_listen.rfind(':');
  HttpServerOptions server;
  server.address = options_.http_listen.substr(0, colon);
  if (server.address == "localhost") server.address = "127.0.0.1";
  if (absl::StartsWith(server.address, "[") && absl::EndsWith(server.address, "]")) {
    server.address = server.address.substr(1, server.address.size() - 2);  // IPv6
  }
  int port = 0;
  (void)absl::SimpleAtoi(options_.http_listen.substr(colon + 1), &port);  // CheckDaemonOptions has
  server.port = static_cast<uint16_t>(port);
  server.certificates = ForHttp(credentials_.tls);
  server.quick = [this](const HttpRequest& request) { return gateway_.Quick(request); };
  server.admit = [this](const HttpRequest& header,
                        const std::shared_ptr<HttpResponder>& responder) {
    return gateway_.Admit(header, responder);
  };
  server.on_rejected = [this](const std::string& method, int status, absl::Duration after) {
    gateway_.OnRejected(method, status, after);
  };
  server.rejection_body = [this](const std::string& path, int status, const std::string& message) {
    return gateway_.RejectionBody(path, status, message);
  };
  server.overloaded = [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    gateway_.Overloaded(std::move(request), std::move(responder));
  };
  auto started = HttpServer::Start(
      server, [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
        gateway_.Handle(std::move(request), std::move(responder));
      });
  if (!started.ok()) return started.status();
  http_ = *std::move(started);
  http_address_ = absl::StrCat(options_.http_listen.substr(0, colon), ":", http_->port());
  coordinator_->SetHttpAddress(http_address_);
  return absl::OkStatus();
}

void Daemon::WatchCredentials() {
  const auto to_http = [this](const TlsPem&) {
    if (http_ == nullptr) return;
    if (absl::Status set = http_->SetCertificates(ForHttp(credentials_.tls)); !set.ok()) {
      spdlog::warn("{}; the certificates read before stay in use", std::string(set.message()));
    }
  };
  credential_watch_.emplace(WatchedCredentials(credentials_, to_http), kCredentialCheck);
}

absl::Status Daemon::StartLocalWorkers() {
  if (options_.local_workers <= 0) return absl::OkStatus();
  if (credentials_.keys.has_value() && !credentials_.keys->MayJoin()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--api-key-file=", options_.api_key_file,
                     " has no key with the role worker or admin, with which the workers of "
                     "--local-workers could join; add one"));
  }
  absl::StatusOr<std::string> program = FindWorkerProgram();
  if (!program.ok()) return program.status();
  auto started = LocalWorkers::Start({.count = options_.local_workers,
                                      .program = *program,
                                      .coordinator = coordinator_->loopback_address(),
                                      .threads = options_.worker_threads,
                                      .memory_limit = options_.worker_memory,
                                      .swap_dir = options_.worker_swap_dir,
                                      .dataset_roots = options_.dataset_roots,
                                      .cache_dir = JoinPath(options_.data_dir, "cache"),
                                      .api_key_file = options_.api_key_file});
  if (!started.ok()) return started.status();
  workers_ = *std::move(started);
  return absl::OkStatus();
}

int Daemon::WaitUntilReady(const sigset_t& signals) {
  if (const int wanted = options_.local_workers; wanted > 0) {
    const int caught = WaitForSignal(signals, absl::Now() + kWorkersJoin,
                                     [&] { return coordinator_->workers().Live() >= wanted; });
    if (caught != 0) return caught;
    if (const int live = coordinator_->workers().Live(); live < wanted) {
      spdlog::warn("only {} of {} local workers have joined", live, wanted);
    }
  }
  return WaitForSignal(signals, absl::InfiniteFuture(), [&] { return models_.restored(); });
}

absl::Status Daemon::AnnounceReady() {
  absl::Status status =
      WriteReadyFile(options_, credentials_, coordinator_->grpc_address(), http_address_);
  if (!status.ok()) return status;
  const absl::StatusOr<std::string> introduced =
      Introduce(credentials_, coordinator_->grpc_address(), http_address_);
  if (!introduced.ok()) return introduced.status();
  std::printf("%sespalierd ready grpc=%s http=%s\n", introduced->c_str(),
              coordinator_->grpc_address().c_str(), http_address_.c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Daemon::Serve(const sigset_t& signals) {
  if (absl::Status s = coordinator_->Start(); !s.ok()) return s;
  if (absl::Status s = StartHttp(); !s.ok()) return s;
  WatchCredentials();
  // Only now that clients can reach the daemon and ask what is not ready yet.
  models_.StartRestoring();
  if (absl::Status s = StartLocalWorkers(); !s.ok()) return s;
  int caught = WaitUntilReady(signals);
  if (caught == 0) {
    distillations_.Start();
    if (absl::Status s = AnnounceReady(); !s.ok()) return s;
    sigwait(&signals, &caught);
  }
  spdlog::info("signal {}: stopping", caught);
  Drain(signals);
  return absl::OkStatus();
}

void Daemon::Drain(const sigset_t& signals) {
  models_.Drain();
  coordinator_->Drain();
  const auto left = [this] {
    return std::max(models_.OpenRequests(), http_ != nullptr ? http_->OpenRequests() : 0);
  };
  WaitForSignal(signals, absl::Now() + options_.drain, [&] { return left() == 0; });
  if (left() == 0) return;
  spdlog::warn("{} requests are cut off", left());
  // Clients that still read get the reason; others delay the shutdown only briefly.
  models_.EndRequests(absl::UnavailableError(
      "the daemon is stopping, and has cut this answer off; ask for it again later"));
  WaitForSignal(signals, absl::Now() + kLastReads, [&] { return left() == 0; });
}

// No new requests; then the jobs end, while their workers still answer; then the workers, while
// they can still leave.
void Daemon::Stop(const absl::Status& status) {
  models_.Drain();
  credential_watch_.reset();
  if (http_ != nullptr) http_->Stop();
  coordinator_->jobs().Stop();
  if (workers_ != nullptr) workers_->Stop();
  if (!models_.WaitForLoading()) {
    // Exit without destructors: they would wait for a boost-tuning or a gRPC call, which wait for
    // the model. Nobody would see the result, and every write that must last is already durable.
    if (!status.ok()) {
      std::fprintf(stderr, "espalierd: %s\n", std::string(status.message()).c_str());
    }
    if (shared_store_ != nullptr) shared_store_->Resign();
    std::quick_exit(status.ok() ? 0 : 1);
  }
  distillations_.Stop();
  coordinator_->Stop();
  models_.Stop();
}

}  // namespace

absl::Status RunDaemon(const DaemonOptions& given, const sigset_t& signals) {
  if (absl::Status s = CheckDaemonOptions(given); !s.ok()) return s;
  DaemonOptions options = given;
  const SystemClock clock;
  absl::StatusOr<DaemonCredentials> credentials = ReadDaemonCredentials(&options, &clock);
  if (!credentials.ok()) return credentials.status();
  // Ends the lease when all else has ended.
  absl::StatusOr<std::unique_ptr<SharedStore>> shared = WaitToLead(&options, *credentials, signals);
  if (absl::IsCancelled(shared.status())) return absl::OkStatus();
  if (!shared.ok()) return shared.status();
  CoordinatorOptions coordinator_options = ForCoordinator(options, *credentials);
  UseStore(shared->get(), &coordinator_options);
  const WorkerDialer dial =
      GrpcWorkerDialer(coordinator_options.message_limit_bytes, credentials->tls);
  absl::StatusOr<std::unique_ptr<Coordinator>> coordinator =
      Coordinator::Open(std::move(coordinator_options));
  if (!coordinator.ok()) return coordinator.status();
  if (absl::Status s = CheckOwners(options, **coordinator); !s.ok()) return s;
  Daemon daemon(options, *std::move(credentials), *std::move(coordinator), dial, shared->get());
  if (absl::Status s = daemon.AddServices(); !s.ok()) return s;
  const absl::Status status = daemon.Serve(signals);
  daemon.Stop(status);
  return status;
}

}  // namespace espalier
