#include "base/net/leading_channel.h"

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/support/client_interceptor.h>

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/net/authenticated_channel.h"

namespace espalier {
namespace {

struct CreatesCalls;  // names the specialization below

}  // namespace
}  // namespace espalier

// gRPC lets only its own templates create the calls of a channel that another channel stands for;
// its DelegatingChannel cannot change the channel. True of gRPC 1.51: look here if another version
// does not compile.
template <>
class grpc::internal::BlockingUnaryCallImpl<espalier::CreatesCalls, espalier::CreatesCalls> {
 public:
  static Call Create(ChannelInterface& channel, const RpcMethod& method, ClientContext* context,
                     CompletionQueue* queue) {
    return channel.CreateCall(method, context, queue);
  }
};

namespace espalier {
namespace {

using grpc::experimental::InterceptionHookPoints;

constexpr absl::Duration kConnect = absl::Milliseconds(500);  // to one of them
constexpr absl::Duration kProbe = absl::Seconds(2);
// The next one is asked, too, if one does not answer for so long.
constexpr absl::Duration kStagger = absl::Milliseconds(200);
constexpr absl::Duration kLookAgain = absl::Milliseconds(5);
// A coordinator that was stopped, or whose host is gone, does not answer.
constexpr int kKeepaliveMillis = 10'000, kKeepaliveTimeoutMillis = 5'000;
// Any answer comes from a coordinator that leads: one that stands by is UNAVAILABLE for every call.
constexpr char kProbeMethod[] = "/grpc.health.v1.Health/Check";

// Which of the addresses leads, as far as known. Thread-safe.
class Leader {
 public:
  // -1: unknown.
  int known() const {
    absl::MutexLock lock(&mutex_);
    return known_;
  }
  void Set(int index) {
    absl::MutexLock lock(&mutex_);
    known_ = next_ = index;
  }
  // A call to this one has failed: another one may lead.
  void Doubt(int index, int count) {
    absl::MutexLock lock(&mutex_);
    if (known_ != index) return;
    known_ = -1;
    next_ = (index + 1) % count;
  }
  // Where to begin to look.
  int next() const {
    absl::MutexLock lock(&mutex_);
    return next_;
  }

 private:
  mutable absl::Mutex mutex_;
  int known_ ABSL_GUARDED_BY(mutex_) = -1;
  int next_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Doubts that a coordinator leads which does not answer.
class Watcher : public grpc::experimental::Interceptor {
 public:
  Watcher(std::shared_ptr<Leader> leader, int index, int count)
      : leader_(std::move(leader)), index_(index), count_(count) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_STATUS)) {
      const grpc::Status* status = methods->GetRecvStatus();
      if (status != nullptr && (status->error_code() == grpc::StatusCode::UNAVAILABLE ||
                                status->error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)) {
        leader_->Doubt(index_, count_);
      }
    }
    methods->Proceed();
  }

 private:
  const std::shared_ptr<Leader> leader_;
  const int index_, count_;
};

class WatcherFactory : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  WatcherFactory(std::shared_ptr<Leader> leader, int index, int count)
      : leader_(std::move(leader)), index_(index), count_(count) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new Watcher(leader_, index_, count_);  // owned by gRPC
  }

 private:
  const std::shared_ptr<Leader> leader_;
  const int index_, count_;
};

// Asks coordinators whether they lead: the next one once those before have answered, or a little
// later, so that one that does not answer holds up nobody.
class LeaderSearch {
 public:
  explicit LeaderSearch(const std::vector<std::shared_ptr<grpc::Channel>>& in_order)
      : channels_(in_order), probes_(in_order.size()) {}

  // The place of the one that leads; -1: none does, or has answered in time.
  int Run() {
    int leader = -1;
    while (leader < 0) {
      const absl::Time now = absl::Now();
      if (begun_ < probes_.size() && (AllEnded() || now >= next_)) Begin(now);
      for (size_t i = 0; i < begun_; ++i) GoOn(i, now);
      if (!AllEnded()) {
        leader = Await(now);
      } else if (begun_ == probes_.size()) {
        break;
      }
    }
    for (Probe& probe : probes_) probe.context.TryCancel();
    queue_.Shutdown();
    void* tag = nullptr;
    for (bool ok = false; queue_.Next(&tag, &ok);) continue;
    return leader;
  }

 private:
  enum class State { kNew, kConnects, kAsked, kEnded };
  struct Probe {
    State state = State::kNew;
    absl::Time connected_by;
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> call;
    grpc::ByteBuffer reply;
    grpc::Status status;
  };

  bool AllEnded() const {
    return std::all_of(probes_.begin(), probes_.begin() + static_cast<std::ptrdiff_t>(begun_),
                       [](const Probe& probe) { return probe.state == State::kEnded; });
  }
  void Begin(absl::Time now) {
    Probe& probe = probes_[begun_++];
    probe.state = State::kConnects;
    probe.connected_by = now + kConnect;
    next_ = now + kStagger;
  }
  void GoOn(size_t i, absl::Time now) {
    Probe& probe = probes_[i];
    if (probe.state != State::kConnects) return;
    if (channels_[i]->GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_READY) {
      probe.state = State::kAsked;
      probe.context.set_deadline(absl::ToChronoTime(now + kProbe));
      const grpc::Slice empty;
      const grpc::ByteBuffer request(&empty, 1);
      grpc::GenericStub stub(channels_[i]);
      probe.call = stub.PrepareUnaryCall(&probe.context, kProbeMethod, request, &queue_);
      probe.call->StartCall();
      probe.call->Finish(&probe.reply, &probe.status, &probe);
    } else if (now >= probe.connected_by) {
      probe.state = State::kEnded;
    }
  }
  int Await(absl::Time now) {
    void* tag = nullptr;
    bool ok = false;
    // Nothing tells of connections.
    const auto until = absl::ToChronoTime(now + kLookAgain);
    if (queue_.AsyncNext(&tag, &ok, until) != grpc::CompletionQueue::GOT_EVENT) return -1;
    Probe& probe = *static_cast<Probe*>(tag);
    probe.state = State::kEnded;
    const grpc::StatusCode code = probe.status.error_code();
    if (code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return -1;
    }
    return static_cast<int>(&probe - probes_.data());
  }

  const std::vector<std::shared_ptr<grpc::Channel>>& channels_;
  grpc::CompletionQueue queue_;
  std::vector<Probe> probes_;
  size_t begun_ = 0;
  absl::Time next_ = absl::InfinitePast();  // when the next one is asked at the latest
};

class LeadingChannelImpl : public grpc::ChannelInterface {
 public:
  LeadingChannelImpl(const std::vector<std::string>& addresses, grpc::ChannelArguments arguments,
                     const ShownKey& key,
                     const std::shared_ptr<grpc::ChannelCredentials>& credentials)
      : leader_(std::make_shared<Leader>()) {
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMillis);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMillis);
    for (size_t i = 0; i < addresses.size(); ++i) {
      std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> watch;
      watch.push_back(std::make_unique<WatcherFactory>(leader_, static_cast<int>(i),
                                                       static_cast<int>(addresses.size())));
      channels_.push_back(
          KeyedChannel(addresses[i], arguments, key, credentials, std::move(watch)));
    }
  }

  grpc_connectivity_state GetState(bool try_to_connect) override {
    return Choose()->GetState(try_to_connect);
  }

 private:
  // The channel to the leader; to one of the others if none answers.
  std::shared_ptr<grpc::Channel> Choose() {
    if (const int known = leader_->known(); known >= 0) return Channel(known);
    absl::MutexLock lock(&looking_);
    if (const int known = leader_->known(); known >= 0) return Channel(known);
    const int first = leader_->next(), count = static_cast<int>(channels_.size());
    std::vector<std::shared_ptr<grpc::Channel>> in_order = channels_;
    std::rotate(in_order.begin(), in_order.begin() + first, in_order.end());
    if (const int leads = LeaderSearch(in_order).Run(); leads >= 0) {
      leader_->Set((first + leads) % count);
      return in_order[static_cast<size_t>(leads)];
    }
    const auto answers = std::find_if(in_order.rbegin(), in_order.rend(), [](const auto& channel) {
      return channel->GetState(false) == GRPC_CHANNEL_READY;
    });
    return answers == in_order.rend() ? in_order.front() : *answers;
  }
  const std::shared_ptr<grpc::Channel>& Channel(int index) const {
    return channels_[static_cast<size_t>(index)];
  }

  grpc::internal::Call CreateCall(const grpc::internal::RpcMethod& method,
                                  grpc::ClientContext* context,
                                  grpc::CompletionQueue* queue) override {
    return grpc::internal::BlockingUnaryCallImpl<CreatesCalls, CreatesCalls>::Create(
        *Choose(), method, context, queue);
  }
  // Calls belong to the channel that created them.
  void PerformOpsOnCall(grpc::internal::CallOpSetInterface*, grpc::internal::Call*) override {}
  // None: a registration would be of one channel.
  void* RegisterMethod(const char*) override { return nullptr; }
  void NotifyOnStateChangeImpl(grpc_connectivity_state last, gpr_timespec deadline,
                               grpc::CompletionQueue* queue, void* tag) override {
    Choose()->NotifyOnStateChange(last, deadline, queue, tag);
  }
  bool WaitForStateChangeImpl(grpc_connectivity_state last, gpr_timespec deadline) override {
    return Choose()->WaitForStateChange(last, deadline);
  }

  const std::shared_ptr<Leader> leader_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  absl::Mutex looking_;  // one caller looks for all
};

}  // namespace

absl::StatusOr<std::vector<std::string>> SplitAddresses(absl::string_view text,
                                                        absl::string_view what) {
  std::vector<std::string> addresses;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    addresses.emplace_back(absl::StripAsciiWhitespace(part));
    if (!addresses.back().empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(what, "=", text, ": accepted: HOST:PORT, or several with commas between"));
  }
  return addresses;
}

std::shared_ptr<grpc::ChannelInterface> LeadingChannel(
    const std::vector<std::string>& addresses, const grpc::ChannelArguments& arguments,
    const ShownKey& key, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  if (addresses.size() == 1) return KeyedChannel(addresses.front(), arguments, key, credentials);
  return std::make_shared<LeadingChannelImpl>(addresses, arguments, key, credentials);
}

}  // namespace espalier
