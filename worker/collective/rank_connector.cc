#include "worker/collective/rank_connector.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/collective/process_communicator.h"

namespace espalier {
namespace {

// All ranks publish their device.
absl::StatusOr<bool> AllAreCuda(const RankOptions& options, RendezvousStore& store) {
  const auto key = [](int rank) { return absl::StrCat("device/", rank); };
  absl::Status set = store.Set(key(options.rank), options.is_cuda ? "cuda" : "cpu");
  if (!set.ok()) return set;
  bool all = true;
  for (int peer = 0; peer < options.size; ++peer) {
    absl::StatusOr<std::string> kind = store.Get(key(peer), options.rendezvous_timeout);
    if (!kind.ok()) return kind.status();
    all = all && *kind == "cuda";
  }
  return all;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> ConnectRanks(const RankOptions& options,
                                                           std::unique_ptr<RendezvousStore> store,
                                                           const NcclConnector& connect_nccl) {
  absl::StatusOr<bool> all_cuda = AllAreCuda(options, *store);
  if (!all_cuda.ok()) return all_cuda.status();
  PeerMonitorOptions watched;
  watched.rank = options.rank;
  watched.size = options.size;
  watched.host = options.host;
  watched.network = options.network;
  watched.silence = options.silence;
  watched.connect_timeout = std::min(options.connect_timeout, options.silence);
  watched.same_host = options.several_hosts;
  absl::StatusOr<std::unique_ptr<PeerMonitor>> monitor = PeerMonitor::Connect(watched, *store);
  if (!monitor.ok()) return monitor.status();
  if (*all_cuda) {
    const bool several_hosts = *monitor != nullptr;
    if (several_hosts && options.network.encrypted) {
      return absl::PermissionDeniedError(absl::StrCat(
          "the GPUs of this job are on several hosts, and NCCL does not encrypt what they "
          "exchange: if you trust the network between them, start all workers with "
          "--trusted-network (this one: ",
          options.network.worker, ", ", options.host,
          "); otherwise give the job the GPUs of one host"));
    }
    return connect_nccl(std::move(store), *std::move(monitor));
  }
  ProcessCommunicatorOptions processes;
  processes.rank = options.rank;
  processes.size = options.size;
  processes.host = options.host;
  processes.network = options.network;
  processes.connect_timeout = options.connect_timeout;
  processes.timeout = options.timeout;
  processes.share_memory = !options.several_hosts;
  return ConnectProcesses(processes, *store, *std::move(monitor));
}

}  // namespace espalier
