// espalierd: the coordinator with its gRPC and HTTP servers and, optionally, local workers.
#include <grpcpp/impl/service_type.h>
#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/artifacts/artifact_store.h"
#include "server/distillation/distillation_runner.h"
#include "server/distillation/distillation_service.h"
#include "server/coordinator.h"
#include "server/http/gateway/gateway.h"
#include "server/inference/models/artifact_loader.h"
#include "server/inference/services/inference_service.h"
#include "server/inference/services/open_inference_service.h"
#include "server/jobs/job_runner.h"
#include "server/jobs/calibrated_planner.h"
#include "server/jobs/worker_client.h"
#include "server/local_workers.h"
#include "base/version.h"
#include "base/log/log_level.h"
#include "server/membership/rendezvous.h"
#include "server/membership/worker_registry.h"
#include "server/metrics/metrics.h"
#include "server/services/call_interceptor.h"
#include "base/flags/daemon_flags.h"
#include "base/net/api_keys.h"
#include "base/net/credential_watch.h"
#include "base/log/log_format.h"
#include "base/net/transport_security.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:7070", "host:port for gRPC; port 0 chooses a free one");
ABSL_FLAG(std::string, http_listen, "127.0.0.1:8080",
          "host:port for HTTP; port 0 chooses a free one; empty: no HTTP");
ABSL_FLAG(std::string, data_dir, "espalier-data", "folder for jobs, checkpoints and artifacts");
ABSL_FLAG(int, local_workers, 0, "worker processes to start on this machine");
ABSL_FLAG(int64_t, serving_memory, 0,
          "bytes for all models served in this process, including KV caches; 0: three quarters of "
       "the memory of the machine or container");
ABSL_FLAG(int64_t, worker_memory, 0,
          "bytes that programs may use on each local worker; 0: three quarters of the memory of "
       "the machine or container, divided among them");
ABSL_FLAG(std::string, worker_swap_dir, "",
          "folder for swapped tensors of local workers; empty: in memory");
ABSL_FLAG(int, worker_threads, 0, "threads per local worker; 0: the cores divided among them");
ABSL_FLAG(double, lease_seconds, 10, "silence after which a worker is considered dead");
ABSL_FLAG(double, measure_seconds, 3, "time per plan for measuring operators; 0: no measurements");
ABSL_FLAG(int, grpc_max_calls, espalier::GrpcLimits().max_calls,
          "concurrent gRPC calls, each with a thread; calls of workers, probes and cancellations "
       "are not counted");
ABSL_FLAG(int, grpc_max_streams, espalier::GrpcLimits().max_streams,
          "concurrent gRPC calls per connection; further ones wait in the client");
ABSL_FLAG(int64_t, grpc_memory_bytes, espalier::GrpcLimits().memory_bytes,
          "memory for gRPC messages in transit; calls beyond it are ended");
ABSL_FLAG(double, grpc_idle_seconds, absl::ToDoubleSeconds(espalier::GrpcLimits().idle),
          "gRPC streams are cancelled after the client has neither sent nor read anything for "
       "this long");
ABSL_FLAG(int, serving_threads, 0, "threads for serving; 0: all cores but one");
ABSL_FLAG(
    std::string, serving_swap_dir, "",
    "folder for streamed weights of served models (serve --resident-weights); empty: in memory");
ABSL_FLAG(std::string, api_key_file, "",
          "file with one API key per line; clients and workers must present one of them; empty: "
       "no authentication. Keys do not separate users: with any of them all jobs, models and "
       "artifacts can be seen, cancelled and deleted; only generations and stored responses "
       "belong to the key that made them");
ABSL_FLAG(
    bool, open_probes, false,
    "with API keys: answer probes without a key: /health, /ready, /v2/health/live, "
    "/v2/health/ready, gRPC's health service, and ServerLive and ServerReady of the Open "
    "Inference Protocol");
ABSL_FLAG(int64_t, response_store_bytes, 64 << 20,
          "memory for stored responses of /v1/responses, which can be fetched and continued; the "
       "least recently used are dropped; 0: none are stored");
ABSL_FLAG(double, drain_seconds, 30,
          "how long running requests may continue after SIGTERM; a second signal ends them");
ABSL_FLAG(std::string, tls_cert, "",
          "certificate chain (PEM), leaf first: serve gRPC and HTTP over TLS; needs --tls-key");
ABSL_FLAG(std::string, tls_key, "", "private key of --tls-cert (PEM)");
ABSL_FLAG(std::string, tls_client_ca, "",
          "trusted certificates (PEM): callers must present a certificate signed by one of these "
       "(mutual TLS), in addition to API keys");
ABSL_FLAG(std::string, tls_ca, "",
          "trusted certificates (PEM): use TLS to workers off loopback, and verify them with these");
ABSL_FLAG(bool, insecure, false, "allow addresses off loopback without TLS and keys");
ABSL_FLAG(std::string, ready_file, "", "file to which the addresses are written as JSON once all "
       "is ready");
ABSL_FLAG(std::string, log_level, "info", espalier::kLogLevels);

namespace espalier {
namespace {

constexpr absl::Duration kWorkersJoin = absl::Seconds(60);
constexpr absl::Duration kLastWords = absl::Seconds(2);

absl::Status CheckAddress(const char* flag, const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, "=", address, ": host:port is wanted"));
  }
  const bool closed =
      !absl::GetFlag(FLAGS_tls_cert).empty() && !absl::GetFlag(FLAGS_api_key_file).empty();
  if (!IsLoopback(address) && !closed && !absl::GetFlag(FLAGS_insecure)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--", flag, "=", address,
        " is off loopback, where everyone who reaches it may command this daemon; listen on "
        "127.0.0.1, or give --tls-cert, --tls-key and --api-key-file, or pass --insecure on a "
        "network that you trust"));
  }
  return absl::OkStatus();
}

HttpCertificates ForHttp(const TlsPem& pem) { return {pem.certificate, pem.key, pem.client_ca}; }

absl::Status WriteReadyFile(const std::string& path, const std::string& grpc,
                            const std::string& http) {
  nlohmann::ordered_json json;
  json["grpc"] = grpc;
  json["http"] = http;
  json["pid"] = getpid();
  // JSON has no infinity
  json["drain_seconds"] = std::min(absl::GetFlag(FLAGS_drain_seconds), 1e9);
  const std::string temporary = path + ".tmp";
  std::ofstream file(temporary, std::ios::trunc);
  file << json.dump() << "\n";
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(temporary, path, error);
  if (!file || error) {
    return absl::UnavailableError(absl::StrCat("--ready-file=", path, " cannot be written"));
  }
  return absl::OkStatus();
}

// Leaves one core to the threads that send tokens. A kernel waits for all its threads, so one that
// shares its core with a sender delays every step (measured on two cores: 0.9 ms per token with one
// thread, 1.2 and more with two).
int ServingThreads() {
  const int given = absl::GetFlag(FLAGS_serving_threads);
  return given > 0 ? given : std::max(1, static_cast<int>(std::thread::hardware_concurrency()) - 1);
}

absl::StatusOr<GrpcLimits> ReadLimits() {
  GrpcLimits limits;
  limits.max_calls = absl::GetFlag(FLAGS_grpc_max_calls);
  limits.max_streams = absl::GetFlag(FLAGS_grpc_max_streams);
  limits.memory_bytes = absl::GetFlag(FLAGS_grpc_memory_bytes);
  if (!(absl::GetFlag(FLAGS_grpc_idle_seconds) >= 0.1)) {
    return absl::InvalidArgumentError("--grpc-idle-seconds: at least 0.1");
  }
  limits.idle = absl::Seconds(absl::GetFlag(FLAGS_grpc_idle_seconds));
  constexpr int kMost = 1 << 16;
  for (const auto& [flag, value] : {std::pair("grpc_max_calls", limits.max_calls),
                                    std::pair("grpc_max_streams", limits.max_streams)}) {
    if (value >= 1 && value <= kMost) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, "=", value, ": expected 1 to ", kMost));
  }
  constexpr int64_t kLeast = 16 << 20;
  if (limits.memory_bytes < kLeast) {
    return absl::InvalidArgumentError(
        absl::StrCat("--grpc-memory-bytes=", limits.memory_bytes, ": expected at least ", kLeast));
  }
  return limits;
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

// Lets running requests finish and their answers be read. `http` may be null.
void Drain(ModelServer& models, Coordinator& coordinator, HttpServer* http,
           const sigset_t& signals) {
  models.Drain();
  coordinator.Drain();
  const auto left = [&] {
    return std::max(models.OpenRequests(), http != nullptr ? http->OpenRequests() : 0);
  };
  WaitForSignal(signals, absl::Now() + absl::Seconds(absl::GetFlag(FLAGS_drain_seconds)),
                [&] { return left() == 0; });
  if (left() == 0) return;
  spdlog::warn("{} requests are cut off", left());
  // Clients that still read get the reason; others delay the shutdown only briefly.
  models.EndRequests(absl::UnavailableError(
      "the daemon is stopping, and has cut this answer off; ask for it again later"));
  WaitForSignal(signals, absl::Now() + kLastWords, [&] { return left() == 0; });
}

void Report(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "espalierd: %s\n", std::string(status.message()).c_str());
}

absl::Status Serve(const sigset_t& signals) {
  const std::string http_listen = absl::GetFlag(FLAGS_http_listen);
  absl::Status status = CheckAddress("listen", absl::GetFlag(FLAGS_listen));
  if (status.ok() && !http_listen.empty()) status = CheckAddress("http-listen", http_listen);
  if (!status.ok()) return status;
  if (!(absl::GetFlag(FLAGS_drain_seconds) >= 0)) {
    return absl::InvalidArgumentError("--drain-seconds: 0 or more");
  }
  if (absl::GetFlag(FLAGS_response_store_bytes) < 0) {
    return absl::InvalidArgumentError("--response-store-bytes must be 0 or more");
  }
  if (!(absl::GetFlag(FLAGS_lease_seconds) >= 0.5)) {
    return absl::InvalidArgumentError("--lease-seconds: at least 0.5");
  }

  CoordinatorOptions options;
  const absl::StatusOr<GrpcLimits> limits = ReadLimits();
  if (!limits.ok()) return limits.status();
  options.limits = *limits;
  std::optional<ApiKeys> keys;
  if (!absl::GetFlag(FLAGS_api_key_file).empty()) {
    absl::StatusOr<ApiKeys> read = ApiKeys::Read(absl::GetFlag(FLAGS_api_key_file));
    if (!read.ok()) return read.status();
    keys = *std::move(read);
    options.worker_key = keys->shown();
    options.authorize = [keys = *keys](const std::string&, const std::string& authorization) {
      return keys.Check(authorization);
    };
  }
  absl::StatusOr<TransportSecurity> tls =
      TransportSecurity::Read({.certificate = absl::GetFlag(FLAGS_tls_cert),
                               .key = absl::GetFlag(FLAGS_tls_key),
                               .ca = absl::GetFlag(FLAGS_tls_ca),
                               .client_ca = absl::GetFlag(FLAGS_tls_client_ca)});
  if (!tls.ok()) return tls.status();
  options.tls = *tls;
  options.loopback_port = absl::GetFlag(FLAGS_local_workers) > 0;
  options.open_probes = absl::GetFlag(FLAGS_open_probes);
  options.data_dir = absl::GetFlag(FLAGS_data_dir);
  options.listen = absl::GetFlag(FLAGS_listen);
  options.lease = absl::Seconds(absl::GetFlag(FLAGS_lease_seconds));
  options.measure_seconds = absl::GetFlag(FLAGS_measure_seconds);
  const int message_limit_bytes = options.message_limit_bytes;
  const WorkerDialer dial = GrpcWorkerDialer(message_limit_bytes, options.worker_key, *tls);
  absl::StatusOr<std::unique_ptr<Coordinator>> opened = Coordinator::Open(std::move(options));
  if (!opened.ok()) return opened.status();
  Coordinator& coordinator = **opened;

  SystemClock clock;
  ArtifactLoader loader(
      {.operators = &coordinator.operators(),
       .folder = [&](const std::string& name) { return coordinator.artifacts().Pin(name); },
       .threads = ServingThreads(),
       .memory_limit = absl::GetFlag(FLAGS_serving_memory),
       .swap_dir = absl::GetFlag(FLAGS_serving_swap_dir),
       .cluster = {.workers = &coordinator.workers(),
                   .rendezvous = &coordinator.rendezvous(),
                   .dial = dial,
                   .next_attempt = [&] { return coordinator.store().NextEpoch(); }},
       .communication =
           [&](const std::vector<v1::Device>& devices) {
             return coordinator.planner().Communication(devices);
           }});
  ServingMetrics serving_metrics(&coordinator.metrics().registry());
  ModelServer models({.loader = &loader,
                      .store = &coordinator.store(),
                      .clock = &clock,
                      .metrics = &serving_metrics,
                      .default_seed = clock.NowUnixMillis()});
  std::unique_ptr<grpc::Service> inference =
      NewInferenceService(&models, &coordinator.interceptor(), &serving_metrics);
  coordinator.AddService(inference.get());
  if (status = models.LoadServedList(); !status.ok()) {
    spdlog::error("the models of the last run are not served: {}", status.ToString());
  }
  const auto ready = [&] { return models.restored() && !models.draining(); };
  std::unique_ptr<grpc::Service> open_inference =
      NewOpenInferenceService(&models, &coordinator.interceptor(), ready, kEspalierVersion);
  coordinator.AddService(open_inference.get());
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  DistillationRunner distillations({.operators = &coordinator.operators(),
                      .artifacts = &coordinator.artifacts(),
                      .store = &coordinator.store(),
                      .jobs = &coordinator.jobs(),
                      .models = &models,
                      .files = files.get(),
                      .clock = &clock,
                      .describe = [&](const std::string& name) -> absl::StatusOr<ModelDescription> {
                        absl::StatusOr<ArtifactLoader::Described> described = loader.Describe(name);
                        if (!described.ok()) return described.status();
                        return std::move(described->description);
                      }});
  if (status = distillations.Open(); !status.ok()) return status;
  std::unique_ptr<grpc::Service> distillation = NewDistillationService(&coordinator.interceptor(), &distillations);
  coordinator.AddService(distillation.get());
  coordinator.SetServedModels([&models] { return models.Names(); });
  Gateway gateway(
      {.models = &models,
       .metrics = &serving_metrics,
       .exposition = [&] { return coordinator.metrics().Expose(); },
       .authorize =
           [&](const std::string& route, const std::string& authorization) {
             return coordinator.interceptor().Check(route, authorization);
           },
       .open_probes = absl::GetFlag(FLAGS_open_probes),
       .ready = ready,
       .response_store_bytes = static_cast<size_t>(absl::GetFlag(FLAGS_response_store_bytes)),
       .clock = &clock,
       .version = kEspalierVersion});
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<LocalWorkers> workers;
  std::optional<CredentialWatch> credentials;
  // Order of shutdown: no new requests; then the jobs, while their workers still answer; then the
  // workers, while they can still leave.
  auto stop = absl::MakeCleanup([&] {
    models.Drain();
    credentials.reset();
    if (http != nullptr) http->Stop();
    coordinator.jobs().Stop();
    if (workers != nullptr) workers->Stop();
    if (!models.WaitForLoading()) {
      // Exit without destructors: they would wait for a boost-tuning or a gRPC call, which wait for
      // the model. Nobody would see the result, and every write that must last is already durable.
      Report(status);
      std::quick_exit(status.ok() ? 0 : 1);
    }
    distillations.Stop();
    coordinator.Stop();
    models.Stop();
  });
  status = coordinator.Start();
  if (!status.ok()) return status;

  std::string http_address;
  if (!http_listen.empty()) {
    const size_t colon = http_listen.rfind(':');
    HttpServerOptions server;
    server.address = http_listen.substr(0, colon);
    if (server.address == "localhost") server.address = "127.0.0.1";
    if (absl::StartsWith(server.address, "[") && absl::EndsWith(server.address, "]")) {
      server.address = server.address.substr(1, server.address.size() - 2);  // IPv6
    }
    int port = 0;
    (void)absl::SimpleAtoi(http_listen.substr(colon + 1), &port);  // CheckAddress has parsed it
    server.port = static_cast<uint16_t>(port);
    server.certificates = ForHttp(tls->pem());
    server.quick = [&](const HttpRequest& request) { return gateway.Quick(request); };
    server.admit = [&](const HttpRequest& header, const std::shared_ptr<HttpResponder>& responder) {
      return gateway.Admit(header, responder);
    };
    server.on_rejected = [&](const std::string& method, int status, absl::Duration after) {
      gateway.OnRejected(method, status, after);
    };
    server.overloaded = [&](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
      gateway.Overloaded(std::move(request), std::move(responder));
    };
    auto started = HttpServer::Start(
        server, [&](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
          gateway.Handle(std::move(request), std::move(responder));
        });
    if (status = started.status(); !status.ok()) return status;
    http = *std::move(started);
    http_address = absl::StrCat(http_listen.substr(0, colon), ":", http->port());
    coordinator.SetHttpAddress(http_address);
  }
  const auto to_http = [&http](const TlsPem& pem) {
    if (http == nullptr) return;
    if (absl::Status set = http->SetCertificates(ForHttp(pem)); !set.ok()) {
      spdlog::warn("{}; the certificates read before stay in use", std::string(set.message()));
    }
  };
  credentials.emplace(CredentialsOf(*tls, keys, to_http), kCredentialCheck);

  // Only now that clients can reach the daemon and ask what is not ready yet.
  models.StartRestoring();
  int caught = 0;  // the signal received
  const int wanted = absl::GetFlag(FLAGS_local_workers);
  if (wanted > 0) {
    absl::StatusOr<std::string> program = FindWorkerProgram();
    if (status = program.status(); !status.ok()) return status;
    auto started = LocalWorkers::Start({.count = wanted,
                                        .program = *program,
                                        .coordinator = coordinator.loopback_address(),
                                        .threads = absl::GetFlag(FLAGS_worker_threads),
                                        .memory_limit = absl::GetFlag(FLAGS_worker_memory),
                                        .swap_dir = absl::GetFlag(FLAGS_worker_swap_dir),
                                        .api_key_file = absl::GetFlag(FLAGS_api_key_file)});
    if (status = started.status(); !status.ok()) return status;
    workers = *std::move(started);
    caught = WaitForSignal(signals, absl::Now() + kWorkersJoin,
                           [&] { return coordinator.workers().Live() >= wanted; });
    if (const int live = coordinator.workers().Live(); caught == 0 && live < wanted) {
      spdlog::warn("only {} of {} local workers have joined", live, wanted);
    }
  }
  if (caught == 0) {
    caught = WaitForSignal(signals, absl::InfiniteFuture(), [&] { return models.restored(); });
  }
  if (caught == 0) {
    distillations.Start();
    if (!absl::GetFlag(FLAGS_ready_file).empty()) {
      status =
          WriteReadyFile(absl::GetFlag(FLAGS_ready_file), coordinator.grpc_address(), http_address);
      if (!status.ok()) return status;
    }
    std::printf("espalierd ready grpc=%s http=%s\n", coordinator.grpc_address().c_str(),
                http_address.c_str());
    std::fflush(stdout);
    sigwait(&signals, &caught);
  }
  spdlog::info("signal {}: stopping", caught);
  Drain(models, coordinator, http.get(), signals);
  return absl::OkStatus();
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  espalier::ParseDaemonFlags(
      argc, argv,
      {.program = "espalierd",
       .summary = "the coordinator of Espalier",
       .example = "espalierd --data-dir=/var/lib/espalier --local-workers=2",
       .flags_file = "server/main.cc"});
  // Before any thread starts, so that all inherit the mask and only sigwait gets these signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  spdlog::set_default_logger(spdlog::stderr_color_mt("espalierd"));
  spdlog::set_formatter(espalier::LogFormat());
  const auto level = espalier::ParseLogLevel(absl::GetFlag(FLAGS_log_level));
  if (!level.ok()) {
    espalier::Report(level.status());
    return 2;
  }
  spdlog::set_level(*level);
  spdlog::flush_on(spdlog::level::info);

  const absl::Status status = espalier::Serve(signals);
  espalier::Report(status);
  return status.ok() ? 0 : 1;
}
