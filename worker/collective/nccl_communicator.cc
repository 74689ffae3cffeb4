#include "worker/collective/nccl_communicator.h"

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "worker/collective/host_communicator.h"

namespace espalier {
namespace {

constexpr absl::Duration kWatchEvery = absl::Seconds(1);

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(CudaPlugin* plugin, int ordinal, Device& device, int rank, int size,
                   std::unique_ptr<RendezvousStore> store, absl::Duration timeout,
                   std::unique_ptr<PeerMonitor> monitor)
      : plugin_(plugin),
        ordinal_(ordinal),
        device_(device),
        rank_(rank),
        size_(size),
        store_(std::move(store)),
        timeout_(timeout),
        monitor_(std::move(monitor)) {
    if (monitor_ != nullptr) monitor_->Watch([this](const absl::Status& s) { End(s); });
    watch_ = std::thread([this] { EndWhatTakesTooLong(); });
  }
  ~NcclCommunicator() override {
    monitor_.reset();
    {
      absl::MutexLock lock(&mutex_);
      closing_ = true;
      closed_.Signal();
    }
    watch_.join();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool on_device() const override { return true; }

  // Each pair of ranks has its own communicator, so that two ranks never wait for a third.
  absl::Status Send(const void* data, int64_t bytes, int peer, uint64_t) override {
    const Group pair{std::min(rank_, peer), std::max(rank_, peer)};
    return Call(pair, [&](CudaCommunicator& c, int me) { return c.Send(data, bytes, 1 - me); });
  }
  absl::Status Receive(void* data, int64_t bytes, int peer, uint64_t) override {
    const Group pair{std::min(rank_, peer), std::max(rank_, peer)};
    return Call(pair, [&](CudaCommunicator& c, int me) { return c.Receive(data, bytes, 1 - me); });
  }
  absl::Status AllReduce(DType dtype, const void* input, void* output, int64_t count,
                         const Group& group, uint64_t) override {
    return Call(group, [&](CudaCommunicator& c, int) {
      return c.AllReduceSum(dtype, input, output, count);
    });
  }
  absl::Status AllGather(const void* input, void* output, int64_t bytes, const Group& group,
                         uint64_t) override {
    return Call(group, [&](CudaCommunicator& c, int) { return c.AllGather(input, output, bytes); });
  }
  absl::Status ReduceScatter(DType dtype, const void* input, void* output, int64_t count,
                             const Group& group, uint64_t) override {
    return Call(group, [&](CudaCommunicator& c, int) {
      return c.ReduceScatterSum(dtype, input, output, count);
    });
  }
  absl::Status AllToAll(const void* input, void* output, int64_t bytes, const Group& group,
                        uint64_t) override {
    return Call(group, [&](CudaCommunicator& c, int) { return c.AllToAll(input, output, bytes); });
  }
  absl::Status Broadcast(const void* input, void* output, int64_t bytes, const Group& group,
                         uint64_t) override {
    const Dims whole{bytes}, zero{0};
    if (IndexInGroup(group, rank_) == 0 && input != output) {
      absl::Status copied =
          device_.CopyBox({input, output, DType::kBool, whole, whole, zero, zero, whole, false});
      if (!copied.ok()) return copied;
    }
    return Call(group, [&](CudaCommunicator& c, int) { return c.Broadcast(output, bytes); });
  }

  absl::Status Flush() override {
    const absl::Status done = Within([&] { return device_.Synchronize(); });
    absl::MutexLock lock(&mutex_);
    if (!ended_.ok()) return ended_;
    for (auto& [group, communicator] : groups_) {
      KernelStatus error = communicator->AsyncError();
      if (!error.ok()) return Failed(group, error.error);
    }
    return done;
  }

  void Abort(const std::string& reason) override { End(absl::CancelledError(reason)); }

 private:
  // Ends pending and all later calls with `status`, unless they have already ended.
  void End(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    EndLocked(status);
  }
  void EndLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!ended_.ok()) return;
    ended_ = status;
    for (auto& [group, communicator] : groups_) communicator->Abort();
  }

  // NCCL waits for its peers without end, and so does what waits for it.
  template <typename Function>
  std::invoke_result_t<Function> Within(Function function) {
    {
      absl::MutexLock lock(&mutex_);
      due_ = absl::Now() + timeout_;
    }
    auto result = function();
    absl::MutexLock lock(&mutex_);
    due_ = absl::InfiniteFuture();
    return result;
  }
  void EndWhatTakesTooLong() {
    absl::MutexLock lock(&mutex_);
    while (!closing_) {
      if (absl::Now() >= due_) {
        EndLocked(absl::DeadlineExceededError(
            absl::StrCat("rank ", rank_,
                         ": what its GPU computes and exchanges with other ranks has "
                         "not ended within ",
                         absl::FormatDuration(timeout_))));
        due_ = absl::InfiniteFuture();
      }
      // Calls are many, so they do not wake this thread.
      closed_.WaitWithTimeout(&mutex_, std::min(kWatchEvery, timeout_ / 4));
    }
  }

  absl::StatusOr<CudaCommunicator*> Find(const Group& group, int me) {
    {
      absl::MutexLock lock(&mutex_);
      if (!ended_.ok()) return ended_;
      auto found = groups_.find(group);
      if (found != groups_.end()) return found->second.get();
    }
    const std::string key = absl::StrCat("nccl/", absl::StrJoin(group, ","));
    std::string id;
    // The id is published when all have arrived: the store says which one has not.
    if (me == 0) {
      for (size_t other = 1; other < group.size(); ++other) {
        absl::StatusOr<std::string> there =
            store_->Get(absl::StrCat(key, "/", group[other]), timeout_);
        if (!there.ok()) return there.status();
      }
      if (KernelStatus made = plugin_->NewCommunicatorId(&id); !made.ok()) {
        return absl::UnavailableError(absl::StrCat("NCCL: ", made.error));
      }
      if (absl::Status s = store_->Set(key, id); !s.ok()) return s;
    } else {
      if (absl::Status s = store_->Set(absl::StrCat(key, "/", rank_), ""); !s.ok()) return s;
      absl::StatusOr<std::string> got = store_->Get(key, timeout_);
      if (!got.ok()) return got.status();
      id = *std::move(got);
    }
    const absl::Time deadline = absl::Now() + timeout_;
    const auto go_on = [&] {
      absl::MutexLock lock(&mutex_);
      return ended_.ok() && absl::Now() < deadline;
    };
    std::string error;
    std::unique_ptr<CudaCommunicator> made = plugin_->CreateCommunicator(
        ordinal_, id, me, static_cast<int>(group.size()), go_on, &error);
    absl::MutexLock lock(&mutex_);
    if (!ended_.ok()) {
      if (made != nullptr) made->Abort();
      return ended_;
    }
    if (made == nullptr) return Failed(group, error);
    return (groups_[group] = std::move(made)).get();
  }

  static absl::Status Failed(const Group& group, const std::string& error) {
    return absl::UnavailableError(
        absl::StrCat("NCCL among ranks ", absl::StrJoin(group, ","), ": ", error));
  }

  template <typename Function>
  absl::Status Call(const Group& group, Function function) {
    const int me = IndexInGroup(group, rank_);
    if (me < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank_, " is not in the group of this collective"));
    }
    absl::StatusOr<CudaCommunicator*> communicator = Find(group, me);
    if (!communicator.ok()) return communicator.status();
    const KernelStatus status = Within([&] { return function(**communicator, me); });
    if (status.ok()) return absl::OkStatus();
    // A call that End has ended says why.
    absl::MutexLock lock(&mutex_);
    return ended_.ok() ? Failed(group, status.error) : ended_;
  }

  CudaPlugin* const plugin_;
  const int ordinal_;
  Device& device_;
  const int rank_;
  const int size_;
  const std::unique_ptr<RendezvousStore> store_;
  const absl::Duration timeout_;
  std::unique_ptr<PeerMonitor> monitor_;

  absl::Mutex mutex_;
  absl::CondVar closed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time due_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // of the call in progress
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);  // not ok after Abort, or once a peer is silent
  std::map<Group, std::unique_ptr<CudaCommunicator>> groups_ ABSL_GUARDED_BY(mutex_);
  std::thread watch_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> ConnectNccl(Device& device, int rank, int size,
                                                          std::unique_ptr<RendezvousStore> store,
                                                          absl::Duration timeout,
                                                          std::unique_ptr<PeerMonitor> monitor) {
  int ordinal = 0;
  CudaPlugin* plugin = CudaPluginOf(device, &ordinal);
  if (plugin == nullptr) {
    return absl::InvalidArgumentError("NCCL needs a CUDA device; this one is a CPU");
  }
  return NewNcclCommunicator(plugin, ordinal, device, rank, size, std::move(store), timeout,
                             std::move(monitor));
}

std::unique_ptr<Communicator> NewNcclCommunicator(CudaPlugin* plugin, int ordinal, Device& device,
                                                  int rank, int size,
                                                  std::unique_ptr<RendezvousStore> store,
                                                  absl::Duration timeout,
                                                  std::unique_ptr<PeerMonitor> monitor) {
  return std::make_unique<NcclCommunicator>(plugin, ordinal, device, rank, size, std::move(store),
                                            timeout, std::move(monitor));
}

}  // namespace espalier
