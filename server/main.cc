// espalierd: reads the command line and runs the daemon.
#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "base/flags/daemon_flags.h"
#include "base/log/log_format.h"
#include "base/log/log_level.h"
#include "base/machine_memory.h"
#include "server/daemon.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:7070", "host:port for gRPC; port 0 chooses a free one");
ABSL_FLAG(std::string, http_listen, "127.0.0.1:8080",
          "host:port for HTTP; port 0 chooses a free one; empty: no HTTP");
ABSL_FLAG(
    std::vector<std::string>, http_allowed_origins, {},
    "origins of web pages, separated by commas, that may use the HTTP API and read its answers "
    "(CORS), as in https://chat.example; *: all; empty: none");
ABSL_FLAG(std::string, data_dir, "espalier-data", "folder for jobs, checkpoints and artifacts");
ABSL_FLAG(
    std::string, checkpoint_store, "auto",
    "where jobs keep their checkpoints: auto, in --data-dir, which workers use themselves if they "
    "share it and reach through this process otherwise; coordinator, the same, but all workers go "
    "through this process; s3://BUCKET[/PREFIX], which all workers reach with AWS credentials of "
    "their own (AWS_ENDPOINT_URL_S3 names another server)");
ABSL_FLAG(
    std::string, artifact_store, "",
    "where models, datasets and ONNX files are kept: s3://BUCKET[/PREFIX], which may be that of "
    "--checkpoint-store; --data-dir then has copies of what was used. With etcd, and "
    "--checkpoint-store in S3, too, each coordinator has a --data-dir of its own. Empty: in "
    "--data-dir");
ABSL_FLAG(
    std::string, spool, "",
    "where the checkpoints of recorded jobs are copied to while they train: a folder, such as a "
    "mounted disk, or s3://BUCKET[/PREFIX], used with this process's AWS credentials. Copies stay "
    "until the job is deleted, whatever --record-bytes removes, and are replayed from there. Of "
    "several coordinators all need the same. Empty: nowhere");
ABSL_FLAG(int64_t, record_bytes, espalier::CoordinatorOptions().record_bytes,
          "bytes that the checkpoints of a recorded job may take, unless it says otherwise "
          "(RecordOptions.max_bytes): if they take more, every second one is removed");
ABSL_FLAG(int64_t, recordings_bytes, 0,
          "bytes that all recorded checkpoints may take together: if they take more, those of the "
          "jobs that ended first are removed; 0: no limit");
ABSL_FLAG(
    std::vector<std::string>, dataset_root, {},
    "folders, separated by commas, whose files clients may name as datasets by their paths "
    "(train --no-upload), and s3://bucket/prefix, whose objects they may name, read with this "
    "process's AWS credentials; workers on other hosts need the flag, too; empty: none. "
    "Clients that may train may read all that is in them");
ABSL_FLAG(std::string, job_store, "sqlite",
          "where jobs are kept: sqlite, in the data folder; or etcd://HOST:PORT[,HOST:PORT...]"
          "[/PREFIX], for several coordinators that stand by for each other: start each with the "
          "same --job-store, and the same, shared, --data-dir or the same --artifact-store");
ABSL_FLAG(double, leader_lease_seconds, 10,
          "with etcd: silence of the leading coordinator after which another one leads");
ABSL_FLAG(std::string, etcd_ca, "",
          "trusted certificates (PEM): use TLS to etcd, and verify it with these");
ABSL_FLAG(std::string, etcd_cert, "",
          "certificate (PEM) for an etcd that wants one of its clients");
ABSL_FLAG(std::string, etcd_key, "", "private key of --etcd-cert (PEM)");
ABSL_FLAG(std::string, etcd_user, "", "user for an etcd with authentication");
ABSL_FLAG(std::string, etcd_password_file, "", "file with the password of --etcd-user");
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
ABSL_FLAG(
    double, worker_return_timeout, 10,
    "seconds that a job which has lost workers waits for as many as it had, before it goes on "
    "with fewer; it takes them back at a checkpoint once they are idle");
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
ABSL_FLAG(
    std::string, api_key_file, "",
    "file of API keys, one per line: KEY [role=ROLE,...] [owner=NAME]; clients and workers must "
    "present one of them. Roles: admin (everything, and the default), train, infer, worker, "
    "monitor. Jobs, artifacts, served models, generations and stored responses belong to the owner "
    "of the key that made them: others cannot see, cancel or delete them. Empty: no "
    "authentication");
ABSL_FLAG(bool, open_probes, false,
          "with API keys: answer probes without a key: /health, /ready, /v2/health/live, "
          "/v2/health/ready, gRPC's health service, and ServerLive and ServerReady of the Open "
          "Inference Protocol");
ABSL_FLAG(bool, share_prefixes, false,
          "with API keys: requests share cached prefixes whatever their keys; a caller may then "
          "learn from cached_tokens and from the time to the first token what others have asked");
ABSL_FLAG(int64_t, response_store_bytes, 64 << 20,
          "memory for stored responses of /v1/responses, which can be fetched and continued; the "
          "least recently used are dropped; 0: none are stored");
ABSL_FLAG(double, drain_seconds, 30,
          "how long running requests may continue after SIGTERM; a second signal ends them");
ABSL_FLAG(
    std::string, tls, "",
    "auto: make a CA and certificates in the data folder, serve gRPC and HTTP over TLS, and "
    "let workers join by tokens (espalier token create); without --api-key-file, with an "
    "admin's key in the data folder. Empty: TLS by the files of the following flags, or none");
ABSL_FLAG(std::string, advertise, "",
          "with --tls=auto: host:port by which others reach --listen, for tokens and certificates; "
          "of several coordinators, separated by commas; empty: from --listen and this host's "
          "addresses");
ABSL_FLAG(double, worker_certificate_hours, 24,
          "with --tls=auto: life of the certificates of workers, which renew them after two thirds "
          "of it; so long a worker whose token is revoked may remain");
ABSL_FLAG(std::string, tls_cert, "",
          "certificate chain (PEM), leaf first: serve gRPC and HTTP over TLS; needs --tls-key");
ABSL_FLAG(std::string, tls_key, "", "private key of --tls-cert (PEM)");
ABSL_FLAG(std::string, tls_client_ca, "",
          "trusted certificates (PEM): callers must present a certificate signed by one of these "
          "(mutual TLS), in addition to API keys");
ABSL_FLAG(
    std::string, tls_ca, "",
    "trusted certificates (PEM): use TLS to workers off loopback, and verify them with these");
ABSL_FLAG(bool, insecure, false,
          "allow addresses off loopback without TLS and keys, and a data folder with owners "
          "without keys");
ABSL_FLAG(std::string, ready_file, "",
          "file to which the addresses are written as JSON once all "
          "is ready");
ABSL_FLAG(std::string, log_level, "info", espalier::kLogLevels);

namespace espalier {
namespace {

DaemonOptions OptionsOfFlags() {
  DaemonOptions options;
  options.listen = absl::GetFlag(FLAGS_listen);
  options.http_listen = absl::GetFlag(FLAGS_http_listen);
  options.http_allowed_origins = absl::GetFlag(FLAGS_http_allowed_origins);
  options.data_dir = absl::GetFlag(FLAGS_data_dir);
  options.checkpoint_store = absl::GetFlag(FLAGS_checkpoint_store);
  options.artifact_store = absl::GetFlag(FLAGS_artifact_store);
  options.spool = absl::GetFlag(FLAGS_spool);
  options.record_bytes = absl::GetFlag(FLAGS_record_bytes);
  options.recordings_bytes = absl::GetFlag(FLAGS_recordings_bytes);
  options.dataset_roots = absl::GetFlag(FLAGS_dataset_root);
  options.ready_file = absl::GetFlag(FLAGS_ready_file);
  options.local_workers = absl::GetFlag(FLAGS_local_workers);
  options.worker_memory = absl::GetFlag(FLAGS_worker_memory);
  options.worker_swap_dir = absl::GetFlag(FLAGS_worker_swap_dir);
  options.worker_threads = absl::GetFlag(FLAGS_worker_threads);
  options.serving_memory = absl::GetFlag(FLAGS_serving_memory);
  options.serving_threads = absl::GetFlag(FLAGS_serving_threads);
  options.serving_swap_dir = absl::GetFlag(FLAGS_serving_swap_dir);
  options.response_store_bytes = absl::GetFlag(FLAGS_response_store_bytes);
  options.api_key_file = absl::GetFlag(FLAGS_api_key_file);
  options.share_prefixes = absl::GetFlag(FLAGS_share_prefixes);
  options.open_probes = absl::GetFlag(FLAGS_open_probes);
  options.tls = {.certificate = absl::GetFlag(FLAGS_tls_cert),
                 .key = absl::GetFlag(FLAGS_tls_key),
                 .ca = absl::GetFlag(FLAGS_tls_ca),
                 .client_ca = absl::GetFlag(FLAGS_tls_client_ca)};
  options.automatic_tls = absl::GetFlag(FLAGS_tls) == "auto";
  options.advertise = absl::GetFlag(FLAGS_advertise);
  options.worker_certificate_life = absl::Hours(absl::GetFlag(FLAGS_worker_certificate_hours));
  options.insecure = absl::GetFlag(FLAGS_insecure);
  options.job_store.tls = {.certificate = absl::GetFlag(FLAGS_etcd_cert),
                           .key = absl::GetFlag(FLAGS_etcd_key),
                           .ca = absl::GetFlag(FLAGS_etcd_ca)};
  options.job_store.user = absl::GetFlag(FLAGS_etcd_user);
  options.job_store.password_file = absl::GetFlag(FLAGS_etcd_password_file);
  options.job_store.lease = absl::Seconds(absl::GetFlag(FLAGS_leader_lease_seconds));
  options.job_store.insecure = options.insecure;
  options.lease = absl::Seconds(absl::GetFlag(FLAGS_lease_seconds));
  options.worker_return = absl::Seconds(absl::GetFlag(FLAGS_worker_return_timeout));
  options.measure_seconds = absl::GetFlag(FLAGS_measure_seconds);
  options.drain = absl::Seconds(absl::GetFlag(FLAGS_drain_seconds));
  options.limits.max_calls = absl::GetFlag(FLAGS_grpc_max_calls);
  options.limits.max_streams = absl::GetFlag(FLAGS_grpc_max_streams);
  options.limits.memory_bytes = absl::GetFlag(FLAGS_grpc_memory_bytes);
  options.limits.idle = absl::Seconds(absl::GetFlag(FLAGS_grpc_idle_seconds));
  return options;
}

void Report(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "espalierd: %s\n", std::string(status.message()).c_str());
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  espalier::ParseDaemonFlags(argc, argv,
                             {.program = "espalierd",
                              .summary = "the coordinator of Espalier",
                              .example = "espalierd --data-dir=/var/lib/espalier --local-workers=2",
                              .flags_file = "server/main.cc"});
  espalier::LimitFreeMemory();  // models are read to be trained, but not kept
  // Before any thread starts, so that all inherit the mask and only sigwait gets these signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  umask(077);  // what is written holds what clients have sent: for this user only

  spdlog::set_default_logger(spdlog::stderr_color_mt("espalierd"));
  spdlog::set_formatter(espalier::LogFormat());
  const auto level = espalier::ParseLogLevel(absl::GetFlag(FLAGS_log_level));
  if (!level.ok()) {
    espalier::Report(level.status());
    return 2;
  }
  spdlog::set_level(*level);
  spdlog::flush_on(spdlog::level::info);

  if (const std::string tls = absl::GetFlag(FLAGS_tls); !tls.empty() && tls != "auto") {
    espalier::Report(absl::InvalidArgumentError(
        "--tls is \"" + tls + "\"; accepted: auto; own certificates: --tls-cert and --tls-key"));
    return 2;
  }
  espalier::DaemonOptions options = espalier::OptionsOfFlags();
  const auto job_store = espalier::ParseJobStore(absl::GetFlag(FLAGS_job_store));
  if (!job_store.ok()) {
    espalier::Report(job_store.status());
    return 2;
  }
  options.job_store.address = *job_store;
  const absl::Status status = espalier::RunDaemon(options, signals);
  espalier::Report(status);
  return status.ok() ? 0 : 1;
}
