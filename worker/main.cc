// espalier-worker: joins a coordinator with one device and runs programs on it until stopped.
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "base/flags/daemon_flags.h"
#include "base/log/log_format.h"
#include "base/net/own_address.h"
#include "worker/default_folders.h"
#include "worker/local_worker.h"

ABSL_FLAG(std::string, coordinator, "",
          "host:port of espalierd's gRPC service, or of all coordinators that stand by for each "
          "other, separated by commas; empty: that of the token, or 127.0.0.1:7070");
ABSL_FLAG(
    std::string, join, "",
    "token of `espalier token create --role=worker`, exchanged for a certificate that is kept "
    "in --cache-dir and renewed; empty: ESPALIER_JOIN_TOKEN, which other users do not see, if "
    "--coordinator is not given; without a token, a kept certificate is used");
ABSL_FLAG(std::string, join_file, "", "file that holds such a token");
ABSL_FLAG(
    std::string, listen, "",
    "host:port to serve on; port 0 takes a free one; empty: a free port of the interface that "
    "reaches the coordinator");
ABSL_FLAG(std::string, advertise, "",
          "host:port as others reach this worker; empty: from --listen");
ABSL_FLAG(std::string, name, "", "display name; empty: host name");
ABSL_FLAG(int, threads, 0, "threads for CPU kernels; 0: all cores");
ABSL_FLAG(int64_t, memory_limit, 0,
          "bytes that programs may use; 0: three quarters of the machine's or container's memory");
ABSL_FLAG(std::string, swap_dir, "",
          "folder for tensors that are swapped out of a CPU's memory limit; empty: in memory");
ABSL_FLAG(std::string, device, "cpu", "cpu or cuda:N");
ABSL_FLAG(std::string, cuda_plugin, "",
          "path of libespalier_cuda.so; empty: next to the executable");
ABSL_FLAG(std::vector<std::string>, dataset_root, {},
          "folders, separated by commas, whose files clients may name as datasets by their paths "
          "(train --no-upload), and s3://bucket/prefix, as for espalierd; empty: none");
ABSL_FLAG(std::string, data_dir, "",
          "the coordinator's data folder: the only one in which this worker reads and writes "
          "checkpoints and models; empty: the folder that the coordinator names");
ABSL_FLAG(std::string, cache_dir, "",
          "folder for downloaded datasets and the worker's certificate, in folders of this user's "
          "own; empty: $CACHE_DIRECTORY and $STATE_DIRECTORY of a systemd service, of root "
          "/var/cache/espalier and /var/lib/espalier-worker, of others ~/.cache/espalier/HOST and "
          "~/.local/state/espalier/HOST (or $XDG_CACHE_HOME and $XDG_STATE_HOME); where these "
          "cannot be made, the system's folder of temporary files");
ABSL_FLAG(
    int64_t, cache_bytes, int64_t{16} << 30,
    "kept in --cache-dir: downloaded datasets, blocks of models and copies of checkpoint shards; "
    "the least recently used go first; 0: none");
ABSL_FLAG(
    std::string, api_key_file, "",
    "file with one key per line, as for espalierd: the first with the role worker or admin is "
    "sent to the coordinator; empty: none");
ABSL_FLAG(std::string, tls_cert, "",
          "certificate (PEM), shown to the coordinator's calls; with --tls-key");
ABSL_FLAG(std::string, tls_key, "", "its private key (PEM)");
ABSL_FLAG(std::string, tls_ca, "", "trusted CAs (PEM): use TLS to the coordinator and trust these");
ABSL_FLAG(std::string, tls_client_ca, "",
          "trusted CAs (PEM): require client certificates signed by these");
ABSL_FLAG(double, drain_timeout, 25,
          "seconds that a worker which gets SIGTERM waits until its jobs have written a checkpoint "
          "and go on without it, served models have moved, and running requests have ended; below "
          "the time after which it is killed (30 s by default in Kubernetes and SLURM); 0: leave "
          "at once, as with SIGINT or a second SIGTERM");
ABSL_FLAG(bool, insecure, false, "allow addresses off loopback without TLS and keys");
ABSL_FLAG(
    bool, trusted_network, false,
    "exchange tensors with workers of other hosts in clear: the network between them is "
    "trusted. Workers of other hosts must agree. Needed for GPUs of several hosts, since NCCL "
    "does not encrypt");

namespace {

constexpr double kMostDrainSeconds = 24 * 3600;

// Until one more signal comes, at most.
void Drain(absl::Duration timeout, const sigset_t& signals, espalier::LocalWorker& worker) {
  std::atomic<bool> over{false};
  std::thread impatient([&] {
    constexpr timespec kTick{0, 100'000'000};
    while (!over && sigtimedwait(&signals, nullptr, &kTick) < 0) {
    }
    worker.EndDrain();
  });
  worker.Drain(timeout);
  over = true;
  impatient.join();
}

void SetDefaultFolders(espalier::WorkerOptions* options) {
  const espalier::DefaultFolders folders = espalier::ChooseDefaultFolders(
      [](const std::string& name) {
        const char* value = std::getenv(name.c_str());
        return std::string(value == nullptr ? "" : value);
      },
      geteuid() == 0, espalier::OwnHostName());
  const absl::Status made = folders.cache.empty() ? absl::NotFoundError("there is no HOME")
                                                  : espalier::MakeWritableFolder(folders.cache);
  if (made.ok()) {
    options->cache_dir = folders.cache;
  } else {
    spdlog::warn(
        "{}; what this worker caches is in the folder of temporary files instead: give "
        "--cache-dir another one",
        std::string(made.message()));
  }
  if (!folders.state.empty()) options->identity_dirs.push_back(folders.state);
  options->identity_dirs.push_back("");  // where earlier releases kept certificates
}

}  // namespace

int main(int argc, char** argv) {
  espalier::ParseDaemonFlags(
      argc, argv,
      {.program = "espalier-worker",
       .summary = "joins a coordinator with one device and runs its programs",
       .example = "espalier-worker --coordinator=127.0.0.1:7070 --threads=1",
       .flags_file = "worker/main.cc"});

  // Block signals before any thread starts, so that all inherit the mask and only sigwait receives
  // them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGINT, SIG_DFL);  // a shell ignores it for what it starts in the background
  signal(SIGPIPE, SIG_IGN);
  umask(077);  // checkpoints and datasets are for this user only

  spdlog::set_formatter(espalier::LogFormat());
  espalier::WorkerOptions options;
  options.coordinator = absl::GetFlag(FLAGS_coordinator);
  options.join_token = absl::GetFlag(FLAGS_join);
  options.join_file = absl::GetFlag(FLAGS_join_file);
  if (const char* token = std::getenv("ESPALIER_JOIN_TOKEN");
      token != nullptr && options.join_token.empty() && options.join_file.empty() &&
      options.coordinator.empty()) {
    options.join_token = token;
  }
  options.listen = absl::GetFlag(FLAGS_listen);
  options.advertise = absl::GetFlag(FLAGS_advertise);
  options.name = absl::GetFlag(FLAGS_name);
  options.threads = absl::GetFlag(FLAGS_threads);
  options.memory_limit = absl::GetFlag(FLAGS_memory_limit);
  options.swap_dir = absl::GetFlag(FLAGS_swap_dir);
  options.device = absl::GetFlag(FLAGS_device);
  options.cuda_plugin = absl::GetFlag(FLAGS_cuda_plugin);
  options.dataset_roots = absl::GetFlag(FLAGS_dataset_root);
  options.data_dir = absl::GetFlag(FLAGS_data_dir);
  options.cache_dir = absl::GetFlag(FLAGS_cache_dir);
  if (options.cache_dir.empty()) SetDefaultFolders(&options);
  options.cache_bytes = absl::GetFlag(FLAGS_cache_bytes);
  options.api_key_file = absl::GetFlag(FLAGS_api_key_file);
  options.tls = {.certificate = absl::GetFlag(FLAGS_tls_cert),
                 .key = absl::GetFlag(FLAGS_tls_key),
                 .ca = absl::GetFlag(FLAGS_tls_ca),
                 .client_ca = absl::GetFlag(FLAGS_tls_client_ca)};
  options.insecure = absl::GetFlag(FLAGS_insecure);
  options.trusted_network = absl::GetFlag(FLAGS_trusted_network);
  const double drain_seconds = absl::GetFlag(FLAGS_drain_timeout);
  if (!(drain_seconds >= 0 && drain_seconds <= kMostDrainSeconds)) {  // NaN is not
    std::fprintf(stderr, "espalier-worker: --drain-timeout=%g: 0 to %g seconds are accepted\n",
                 drain_seconds, kMostDrainSeconds);
    return 1;
  }
  std::atomic<bool> started{false};
  int caught = 0;
  std::thread waiter([&] {
    sigwait(&signals, &caught);
    if (!started) _exit(1);  // not joined yet: nothing to leave
    spdlog::info("{}", caught == SIGTERM ? "SIGTERM: about to leave" : "SIGINT: leaving");
  });
  auto worker = espalier::StartWorker(options);
  if (!worker.ok()) {
    std::fprintf(stderr, "espalier-worker: %s\n", std::string(worker.status().message()).c_str());
    _exit(1);
  }
  started = true;
  waiter.join();
  if (caught == SIGTERM && drain_seconds > 0)
    Drain(absl::Seconds(drain_seconds), signals, **worker);
  (*worker)->Stop();
  return 0;
}
