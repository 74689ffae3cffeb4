#include "worker/collective/process_communicator.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "worker/collective/host_communicator.h"
#include "worker/collective/network_transport.h"
#include "worker/collective/shm_transport.h"

namespace espalier {
namespace {

class ProcessCommunicator : public HostCommunicator {
 public:
  // The transports may be null.
  ProcessCommunicator(const ProcessCommunicatorOptions& options, std::unique_ptr<ShmTransport> shm,
                      std::map<int, PeerLink> links, std::unique_ptr<PeerMonitor> monitor)
      : options_(options), shm_(std::move(shm)), monitor_(std::move(monitor)) {
    if (!links.empty()) {
      network_ = std::make_unique<NetworkTransport>(
          std::move(links),
          NetworkTransportOptions{options.timeout, options.max_buffered_bytes,
                                  [this] { return shm_ != nullptr && shm_->FlushSends(); }});
    }
    if (monitor_ != nullptr) monitor_->Watch([this](const absl::Status& s) { End(s); });
  }
  ~ProcessCommunicator() override { monitor_.reset(); }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  int64_t max_buffered_bytes() const override { return options_.max_buffered_bytes; }

  absl::Status Send(const void* data, int64_t bytes, int peer, uint64_t tag) override {
    absl::Status s = Check(peer);
    if (!s.ok() || bytes == 0) return s;
    if (!IsLocal(peer)) return Result(network_->Send(data, bytes, peer, tag));
    s = shm_->Drain(std::max<int64_t>(0, options_.max_buffered_bytes - bytes));
    return Result(s.ok() ? shm_->Send(data, bytes, peer, tag) : s);
  }

  absl::Status Receive(void* data, int64_t bytes, int peer, uint64_t tag) override {
    absl::Status s = Check(peer);
    if (!s.ok() || bytes == 0) return s;
    return Result(IsLocal(peer) ? shm_->Receive(data, bytes, peer, tag)
                                : network_->Receive(data, bytes, peer, tag));
  }

  absl::Status Flush() override {
    absl::Status s = network_ == nullptr ? absl::OkStatus() : network_->Flush();
    if (s.ok() && shm_ != nullptr) s = shm_->Drain(0);
    return Result(s);
  }

  absl::Status EndStep() override {
    absl::Status s = network_ == nullptr ? absl::OkStatus() : network_->EndStep();
    if (s.ok() && shm_ != nullptr) s = shm_->EndStep();
    return Result(s);
  }

  void Abort(const std::string& reason) override { End(absl::CancelledError(reason)); }

 private:
  // Ends pending and all later calls with `status`, unless they have already ended.
  void End(const absl::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      if (ended_.ok()) ended_ = status;
    }
    if (network_ != nullptr) network_->End(status);
    if (shm_ != nullptr) shm_->Abort(std::string(status.message()));
  }

  absl::Status Check(int peer) {
    absl::MutexLock lock(&mutex_);
    if (!ended_.ok()) return ended_;
    if (peer < 0 || peer >= options_.size || peer == options_.rank) {
      return absl::InvalidArgumentError(
          absl::StrCat("no peer ", peer, " for rank ", options_.rank, " of ", options_.size));
    }
    return absl::OkStatus();
  }

  // A call that End has ended says why.
  absl::Status Result(const absl::Status& status) {
    if (status.ok()) return status;
    absl::MutexLock lock(&mutex_);
    return ended_.ok() ? status : ended_;
  }

  bool IsLocal(int peer) const { return shm_ != nullptr && shm_->IsLocal(peer); }

  const ProcessCommunicatorOptions options_;
  const std::unique_ptr<ShmTransport> shm_;
  std::unique_ptr<NetworkTransport> network_;
  std::unique_ptr<PeerMonitor> monitor_;

  absl::Mutex mutex_;
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);  // not ok after Abort, or once a peer is silent
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> ConnectProcesses(
    const ProcessCommunicatorOptions& options, RendezvousStore& store,
    std::unique_ptr<PeerMonitor> monitor) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of ", options.size, " ranks"));
  }
  const auto not_met = [&](const absl::Status& why) {
    absl::Status named(
        why.code(),
        absl::StrCat("rank ", options.rank, " of ", options.size, " could not meet its peers from ",
                     options.host, ": ", std::string(why.message()), "; do all live?"));
    why.ForEachPayload(
        [&](absl::string_view type, const absl::Cord& value) { named.SetPayload(type, value); });
    return named;
  };
  std::unique_ptr<ShmTransport> shm;
  if (options.share_memory && options.size > 1) {
    auto connected = ShmTransport::Connect(options.rank, options.size, store,
                                           options.connect_timeout, options.timeout);
    if (!connected.ok()) return not_met(connected.status());
    shm = *std::move(connected);
  }
  PeerLinksOptions linked;
  linked.rank = options.rank;
  linked.size = options.size;
  linked.host = options.host;
  linked.network = options.network;
  linked.connect_timeout = options.connect_timeout;
  absl::StatusOr<std::map<int, PeerLink>> links = ConnectPeers(
      linked, store,
      [&](int peer, const PeerCard&) { return shm == nullptr || !shm->IsLocal(peer); });
  if (!links.ok()) return not_met(links.status());
  return std::unique_ptr<Communicator>(std::make_unique<ProcessCommunicator>(
      options, std::move(shm), *std::move(links), std::move(monitor)));
}

}  // namespace espalier
