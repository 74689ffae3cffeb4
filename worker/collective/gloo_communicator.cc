#include "worker/collective/gloo_communicator.h"

#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "worker/collective/host_communicator.h"
#include "worker/collective/shm_transport.h"

namespace espalier {
namespace {

using gloo::transport::UnboundBuffer;

constexpr std::chrono::microseconds kShmPollInterval(200);
// Gloo waits for a pair to connect this many times the given timeout (Pair::waitUntil).
constexpr int kGlooConnectFactor = 5;

std::chrono::milliseconds Milliseconds(absl::Duration duration) {
  return std::chrono::milliseconds(std::max<int64_t>(1, absl::ToInt64Milliseconds(duration)));
}

// Gloo has one exception type; only the text identifies a timeout.
absl::Status Classify(const std::string& message) {
  const bool timeout =
      message.find("imed out") != std::string::npos || message.find("imeout") != std::string::npos;
  return timeout ? absl::DeadlineExceededError(message) : absl::UnavailableError(message);
}

// Adapts RendezvousStore to Gloo's store: errors become exceptions, which ConnectGloo catches.
class StoreAdapter : public gloo::rendezvous::Store {
 public:
  StoreAdapter(RendezvousStore& store, absl::Duration timeout) : store_(store), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    absl::Status set = store_.Set(key, std::string(data.begin(), data.end()));
    if (!set.ok()) throw gloo::Exception(std::string(set.message()));
  }
  std::vector<char> get(const std::string& key) override {
    absl::StatusOr<std::string> value = store_.Get(key, timeout_);
    if (!value.ok()) throw gloo::Exception(std::string(value.status().message()));
    return std::vector<char>(value->begin(), value->end());
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  RendezvousStore& store_;
  const absl::Duration timeout_;
};

class GlooCommunicator : public HostCommunicator {
 public:
  // `shm` may be null.
  GlooCommunicator(const GlooOptions& options, std::shared_ptr<gloo::rendezvous::Context> context,
                   std::unique_ptr<ShmTransport> shm, std::unique_ptr<PeerMonitor> monitor)
      : options_(options),
        context_(std::move(context)),
        shm_(std::move(shm)),
        monitor_(std::move(monitor)) {
    if (monitor_ != nullptr) monitor_->Watch([this](const absl::Status& s) { End(s); });
  }

  ~GlooCommunicator() override {
    monitor_.reset();
    // Close connections first, so that no transfer uses a buffer.
    try {
      context_->closeConnections();
    } catch (const std::exception&) {
      // Already lost.
    }
    pending_.clear();
    free_.clear();
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  int64_t max_buffered_bytes() const override { return options_.max_buffered_bytes; }

  // Gloo sends only when the peer has posted its receive, so the data is copied and waited for
  // later.
  absl::Status Send(const void* data, int64_t bytes, int peer, uint64_t tag) override {
    if (bytes == 0) return Check(peer);
    if (absl::Status s = Check(peer); !s.ok()) return s;
    if (IsLocal(peer)) {
      absl::Status s = shm_->Drain(std::max<int64_t>(0, options_.max_buffered_bytes - bytes));
      return s.ok() ? shm_->Send(data, bytes, peer, tag) : s;
    }
    while (!pending_.empty() && buffered_ + bytes > options_.max_buffered_bytes) {
      if (absl::Status s = FinishOldest(); !s.ok()) return s;
    }
    PendingSend send;
    send.peer = peer;
    send.data = TakeMemory(bytes);
    send.bytes = bytes;
    std::memcpy(send.data.get(), data, static_cast<size_t>(bytes));
    try {
      send.buffer = context_->createUnboundBuffer(send.data.get(), static_cast<size_t>(bytes));
      send.buffer->send(peer, tag);
    } catch (const std::exception& e) {
      return Failed(e, peer, "send to");
    }
    buffered_ += bytes;
    pending_.push_back(std::move(send));
    return absl::OkStatus();
  }

  absl::Status Receive(void* data, int64_t bytes, int peer, uint64_t tag) override {
    if (absl::Status s = Check(peer); !s.ok()) return s;
    if (bytes == 0) return absl::OkStatus();
    if (IsLocal(peer)) return shm_->Receive(data, bytes, peer, tag);
    try {
      auto buffer = context_->createUnboundBuffer(data, static_cast<size_t>(bytes));
      buffer->recv(peer, tag);
      if (!StartWait(buffer.get())) return Stop();
      bool done = false;
      try {
        done = WaitWithShm([&] { return buffer->waitRecv(Milliseconds(options_.timeout)); });
      } catch (...) {
        EndWait();
        CloseAll();  // before `buffer` is destroyed
        throw;
      }
      EndWait();
      if (!done) {
        CloseAll();
        return Stop();
      }
    } catch (const std::exception& e) {
      return Failed(e, peer, "receive from");
    }
    return absl::OkStatus();
  }

  absl::Status Flush() override {
    while (!pending_.empty()) {
      if (absl::Status s = FinishOldest(); !s.ok()) return s;
    }
    return shm_ == nullptr ? absl::OkStatus() : shm_->Drain(0);
  }

  absl::Status EndStep() override {
    while (sends_of_last_step_ > 0) {
      if (absl::Status s = FinishOldest(); !s.ok()) return s;
    }
    sends_of_last_step_ = pending_.size();
    return shm_ == nullptr ? absl::OkStatus() : shm_->EndStep();
  }

  void Abort(const std::string& reason) override { End(absl::CancelledError(reason)); }

 private:
  struct PendingSend {
    int peer = 0;
    int64_t bytes = 0;
    std::unique_ptr<char[]> data;
    std::unique_ptr<UnboundBuffer> buffer;  // destroyed before its data
  };

  // Ends pending and all later calls with `status`, unless they have already ended.
  void End(const absl::Status& status) {
    if (shm_ != nullptr) shm_->Abort(std::string(status.message()));
    absl::MutexLock lock(&mutex_);
    if (ended_.ok()) ended_ = status;
    if (waiting_ != nullptr) {
      waiting_->abortWaitRecv();
      waiting_->abortWaitSend();
    }
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

  // Waits for Gloo and continues pending shared-memory sends meanwhile: otherwise a local peer that
  // waits for them, and on which the awaited peer depends, would deadlock.
  template <typename Wait>
  bool WaitWithShm(Wait wait) {
    if (shm_ == nullptr || shm_->pending_bytes() == 0) return wait();
    std::future<bool> done = std::async(std::launch::async, wait);
    while (shm_->FlushSends() && done.wait_for(kShmPollInterval) == std::future_status::timeout) {
    }
    return done.get();
  }

  bool IsLocal(int peer) const { return shm_ != nullptr && shm_->IsLocal(peer); }

  // Buffers are kept until the next step ends: new memory for each message would be mapped, cleared
  // and unmapped, which takes longer than sending. Steps send the same sizes again.
  std::unique_ptr<char[]> TakeMemory(int64_t bytes) {
    auto found = free_.find(bytes);
    if (found == free_.end()) {
      return std::unique_ptr<char[]>(new char[static_cast<size_t>(bytes)]);
    }
    std::unique_ptr<char[]> memory = std::move(found->second.back());
    found->second.pop_back();
    if (found->second.empty()) free_.erase(found);
    free_bytes_ -= bytes;
    return memory;
  }
  void ReleaseBuffer(PendingSend send) {
    send.buffer.reset();
    if (send.bytes > options_.max_buffered_bytes) return;
    // Frees buffers of sizes no longer sent.
    while (!free_.empty() && free_bytes_ + send.bytes > options_.max_buffered_bytes) {
      auto other = free_.begin();
      free_bytes_ -= other->first;
      other->second.pop_back();
      if (other->second.empty()) free_.erase(other);
    }
    free_[send.bytes].push_back(std::move(send.data));
    free_bytes_ += send.bytes;
  }

  bool StartWait(UnboundBuffer* buffer) {
    absl::MutexLock lock(&mutex_);
    if (!ended_.ok()) return false;
    waiting_ = buffer;
    return true;
  }
  void EndWait() {
    absl::MutexLock lock(&mutex_);
    waiting_ = nullptr;
  }
  absl::Status Stop() {
    CloseAll();
    absl::MutexLock lock(&mutex_);
    return ended_;
  }

  void CloseAll() {
    try {
      context_->closeConnections();
    } catch (const std::exception&) {
      // Already lost.
    }
  }

  absl::Status FinishOldest() {
    PendingSend send = std::move(pending_.front());
    pending_.pop_front();
    buffered_ -= send.bytes;
    if (sends_of_last_step_ > 0) --sends_of_last_step_;
    if (!StartWait(send.buffer.get())) return Stop();
    bool done = false;
    try {
      done = WaitWithShm([&] { return send.buffer->waitSend(Milliseconds(options_.timeout)); });
    } catch (const std::exception& e) {
      EndWait();
      CloseAll();
      return Failed(e, send.peer, "send to");
    }
    EndWait();
    if (!done) return Stop();
    ReleaseBuffer(std::move(send));
    return absl::OkStatus();
  }

  absl::Status Failed(const std::exception& e, int peer, const char* what) {
    {
      absl::MutexLock lock(&mutex_);
      if (!ended_.ok()) return ended_;
    }
    const std::string message = absl::StrCat("cannot ", what, " rank ", peer, ": ", e.what());
    return Classify(message);
  }

  const GlooOptions options_;
  const std::shared_ptr<gloo::rendezvous::Context> context_;
  const std::unique_ptr<ShmTransport> shm_;
  std::unique_ptr<PeerMonitor> monitor_;
  std::deque<PendingSend> pending_;
  size_t sends_of_last_step_ = 0;  // the oldest in pending_
  int64_t buffered_ = 0;
  std::map<int64_t, std::vector<std::unique_ptr<char[]>>> free_;  // by size
  int64_t free_bytes_ = 0;

  absl::Mutex mutex_;
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);  // not ok after Abort, or once a peer is silent
  UnboundBuffer* waiting_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> ConnectGloo(const GlooOptions& options,
                                                          RendezvousStore& store,
                                                          std::unique_ptr<PeerMonitor> monitor) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of ", options.size, " ranks"));
  }
  try {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = options.host;
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    auto context = std::make_shared<gloo::rendezvous::Context>(options.rank, options.size);
    // Only connecting pairs use it: later waits pass their own timeouts.
    context->setTimeout(Milliseconds(options.connect_timeout / kGlooConnectFactor));
    StoreAdapter adapter(store, options.connect_timeout);
    context->connectFullMesh(adapter, device);
    std::unique_ptr<ShmTransport> shm;
    if (options.share_memory && options.size > 1) {
      auto connected = ShmTransport::Connect(options.rank, options.size, store,
                                             options.connect_timeout, options.timeout);
      if (!connected.ok()) return connected.status();
      shm = *std::move(connected);
    }
    return std::unique_ptr<Communicator>(std::make_unique<GlooCommunicator>(
        options, std::move(context), std::move(shm), std::move(monitor)));
  } catch (const std::exception& e) {
    const std::string message =
        absl::StrCat("rank ", options.rank, " of ", options.size, " could not meet its peers from ",
                     options.host, ": ", e.what(),
                     "; do all live, and does a firewall let them reach each other?");
    return Classify(message);
  }
}

}  // namespace espalier
