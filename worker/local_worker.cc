#include "worker/local_worker.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/net/api_keys.h"
#include "base/net/authenticated_channel.h"
#include "base/net/credential_watch.h"
#include "base/net/grpc_status.h"
#include "base/net/leading_channel.h"
#include "base/net/own_address.h"
#include "base/random_id.h"
#include "base/steady_clock.h"
#include "worker/collective/nccl_communicator.h"
#include "worker/collective/rank_connector.h"
#include "worker/coordinator_client.h"
#include "worker/dataset_store.h"
#include "worker/join_cluster.h"
#include "worker/measure.h"
#include "worker/storage/host_cache.h"
#include "worker/storage/shard_copies.h"
#include "worker/storage/shard_server.h"
#include "worker/storage/worker_storage.h"
#include "worker/worker_service.h"

namespace espalier {
namespace {

constexpr uint32_t kProtocolVersion = 3;
constexpr absl::Duration kFirstBackoff = absl::Milliseconds(100);
constexpr absl::Duration kMaxBackoff = absl::Seconds(5);
// A rank is not lost sooner for being silent to another one.
constexpr absl::Duration kLeastSilence = absl::Seconds(10);
// Between heartbeats of a worker that waits until it may leave.
constexpr absl::Duration kDrainHeartbeat = absl::Milliseconds(500);
constexpr absl::Duration kDrainTimeout = absl::Seconds(2);  // of the call

std::string RandomKey() {
  std::random_device source;
  return absl::StrFormat("%08x%08x%08x%08x", source(), source(), source(), source());
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const WorkerOptions& options) {
  if (options.device == "cpu") {
    return NewCpuDevice({options.threads, options.memory_limit, options.swap_dir});
  }
  int ordinal = 0;
  if (options.device.rfind("cuda:", 0) == 0 &&
      absl::SimpleAtoi(options.device.substr(5), &ordinal) && ordinal >= 0) {
    return OpenCudaDevice(options.cuda_plugin, ordinal, options.memory_limit);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--device is '", options.device, "'; accepted: cpu, cuda:0, cuda:1, ..."));
}

class LocalWorkerImpl : public LocalWorker {
 public:
  explicit LocalWorkerImpl(JoinedCluster joined)
      : cluster_(std::move(joined)), options_(cluster_.options) {}
  ~LocalWorkerImpl() override { Stop(); }

  absl::Status Start() {
    absl::StatusOr<std::vector<std::string>> coordinators =
        SplitAddresses(options_.coordinator, "--coordinator");
    if (!coordinators.ok()) return coordinators.status();
    bool coordinators_on_loopback = true;
    for (const std::string& address : *coordinators) {
      absl::StatusOr<HostAndPort> coordinator = ParseHostAndPort(address, "--coordinator");
      if (!coordinator.ok()) return coordinator.status();
      coordinators_on_loopback = coordinators_on_loopback && IsLoopback(coordinator->host);
    }
    absl::StatusOr<HostAndPort> listen = ParseHostAndPort(options_.listen, "--listen");
    if (!listen.ok()) return listen.status();
    absl::StatusOr<TransportSecurity> tls = TransportSecurity::Read(options_.tls);
    if (!tls.ok()) return tls.status();
    tls_ = *std::move(tls);
    const bool clear = (!coordinators_on_loopback && !tls_.calls()) ||
                       (!IsLoopback(listen->host) && !tls_.serves());
    if (!options_.insecure && clear) {
      return absl::InvalidArgumentError(absl::StrCat(
          "refusing to communicate without TLS off loopback (--coordinator ", options_.coordinator,
          ", --listen ", options_.listen,
          "): give --tls-ca, --tls-cert, --tls-key and --api-key-file, or, on a network that you "
          "trust, --insecure"));
    }
    if (!options_.trusted_network && !coordinators_on_loopback && !tls_.calls()) {
      spdlog::warn(
          "the keys of encrypted tensors are agreed through {}, but nothing protects the way there "
          "(no --tls-ca): who can change what passes can read tensors, too",
          options_.coordinator);
    }
    on_loopback_ = IsLoopback(options_.advertise.empty() ? listen->host : options_.advertise);
    if (on_loopback_ && !IsLoopback(listen->host) && !options_.insecure) {
      return absl::InvalidArgumentError(absl::StrCat(
          "others reach this worker on loopback (--advertise ", options_.advertise,
          "), where it serves without TLS, and it would listen off loopback (--listen ",
          options_.listen, "): listen on 127.0.0.1"));
    }
    if (cluster_.identity != nullptr) {
      cluster_.identity->KeepRenewing();
    } else if (tls_.serves() && on_loopback_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--tls-cert is for a worker that others reach over a network, but this one is on "
          "loopback (--listen ",
          options_.listen, "): leave it out, or listen elsewhere"));
    }
    if (!options_.api_key_file.empty()) {
      absl::StatusOr<ApiKeys> keys = ApiKeys::Read(options_.api_key_file);
      if (!keys.ok()) return keys.status();
      keys_ = *std::move(keys);
    }
    credentials_.emplace(CredentialsOf(tls_, keys_), kCredentialCheck);
    absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice(options_);
    if (!device.ok()) return device.status();
    device_ = *std::move(device);
    description_ = device_->description();
    if (options_.calibrate) {
      absl::StatusOr<v1::Device> measured = Calibrate(device_.get());
      if (!measured.ok()) return measured.status();
      description_ = *std::move(measured);
    } else {
      description_.set_matmul_flops(5e10 * description_.threads());
      description_.set_memory_bandwidth(1e10);
      description_.set_op_overhead_seconds(2e-6);
    }
    files_ = NewPosixFileSystem();
    client_ =
        std::make_unique<CoordinatorClient>(*coordinators, keys_ ? keys_->shown() : nullptr, tls_);
    absl::StatusOr<std::unique_ptr<HostCache>> cache =
        HostCache::Open(options_.cache_dir, options_.cache_bytes);
    if (!cache.ok()) return cache.status();
    cache_ = *std::move(cache);
    absl::StatusOr<std::unique_ptr<DatasetRoots>> roots =
        DatasetRoots::Create(options_.dataset_roots);
    if (!roots.ok()) return roots.status();
    dataset_roots_ = *std::move(roots);
    for (const std::string& path :
         {options_.api_key_file, options_.tls.certificate, options_.tls.key, options_.tls.ca,
          options_.tls.client_ca, options_.swap_dir, cache_->path()}) {
      dataset_roots_->Exclude(path);
    }
    datasets_ =
        std::make_unique<DatasetStore>(&client_->models(), cache_.get(), dataset_roots_.get());
    WorkerStorageOptions storage;
    storage.files = files_.get();
    storage.stub = &client_->storage();
    storage.cache = cache_.get();
    storage.encrypted = !options_.trusted_network;
    storage.data_dir = options_.data_dir;
    if (options_.cache_bytes > 0) {
      shard_copies_.emplace(cache_.get());
      storage.copies = &*shard_copies_;
    }
    storage_ = std::make_unique<WorkerStorage>(storage);
    absl::StatusOr<std::string> call_key = RandomId();
    if (!call_key.ok()) return call_key.status();
    call_key_ = *std::move(call_key);
    if (absl::Status s = Serve(*listen); !s.ok()) return s;
    if (absl::Status s = ServeShards(listen->host); !s.ok()) return s;
    if (absl::Status s = FirstJoin(); !s.ok()) return s;
    thread_ = std::thread([this] { HeartbeatLoop(); });
    return absl::OkStatus();
  }

  std::string address() const override { return address_; }
  std::string worker_id() const override {
    absl::MutexLock lock(&mutex_);
    return joined_ ? lease_.worker_id() : "";
  }
  void Drain(absl::Duration timeout) override {
    absl::MutexLock lock(&mutex_);
    if (!joined_) return;
    const absl::Time deadline = clock_.Now() + timeout;
    draining_ = true;
    announces_ = true;
    stop_.SignalAll();
    while (draining_ && !drained_ && !stopping_) {
      const absl::Time until = std::min(deadline, last_answer_ + lease_time_);
      const absl::Duration left = until - clock_.Now();
      if (left <= absl::ZeroDuration()) break;
      drain_.WaitWithTimeout(&mutex_, left);
    }
    spdlog::info("leaving, {}", drained_     ? "nothing uses this worker any more"
                                : !draining_ ? "at once"
                                : clock_.Now() >= deadline
                                    ? "although it is in use: --drain-timeout is over"
                                    : "since the coordinator does not answer");
  }
  void EndDrain() override {
    absl::MutexLock lock(&mutex_);
    draining_ = false;
    drain_.SignalAll();
  }
  void Stop() override { End(/*leave=*/true); }
  void Abandon() override { End(/*leave=*/false); }

 private:
  absl::Status Serve(const HostAndPort& listen) {
    WorkerServiceOptions service;
    service.device = device_.get();
    service.files = files_.get();
    service.storage = [this](const v1::Attempt& attempt, const ShardPlaces& places) {
      return storage_->For(attempt, places);
    };
    service.data_dir = options_.data_dir;
    service.open_dataset = [this](const v1::Dataset& dataset) { return datasets_->Open(dataset); };
    service.connect = [this](const v1::Attempt& attempt, int rank, int size,
                             const PeerTimeouts& timeouts, std::function<bool()> cancelled) {
      return Connect(attempt, rank, size, timeouts, std::move(cancelled));
    };
    service.authorize = [this](const std::string& shown) {
      if (IsBearer(shown, call_key_)) return absl::OkStatus();
      return absl::UnauthenticatedError(
          "this worker takes the calls of its coordinator only; give jobs to espalierd");
    };
    service_ = std::make_unique<WorkerService>(std::move(service));
    int port = 0;
    grpc::ServerBuilder builder;
    // The coordinator calls workers on loopback without TLS.
    builder.AddListeningPort(
        options_.listen, on_loopback_ ? grpc::InsecureServerCredentials() : ServerCredentials(tls_),
        &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.SetMaxSendMessageSize(kMaxMessageBytes);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on '", options_.listen, "': is the port in use?"));
    }
    host_ = IsAnyAddress(listen.host) ? OwnHostName() : listen.host;
    address_ = JoinHostAndPort(host_, port);
    if (!options_.advertise.empty()) {
      absl::StatusOr<HostAndPort> advertised = ParseHostAndPort(options_.advertise, "--advertise");
      if (!advertised.ok()) return advertised.status();
      host_ = advertised->host;
      address_ = options_.advertise;
    }
    return absl::OkStatus();
  }

  // For workers of other hosts.
  absl::Status ServeShards(const std::string& listen_host) {
    if (on_loopback_ || !shard_copies_.has_value()) return absl::OkStatus();
    ShardServerOptions shards;
    shards.listen_host = listen_host;
    shards.encrypted = !options_.trusted_network;
    shards.call_key = call_key_;
    shards.copies = &*shard_copies_;
    absl::StatusOr<std::unique_ptr<ShardServer>> server = ShardServer::Start(shards);
    if (!server.ok()) return server.status();
    shard_server_ = *std::move(server);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const v1::Attempt& attempt, int rank,
                                                        int size, const PeerTimeouts& timeouts,
                                                        std::function<bool()> cancelled) {
    v1::Lease lease;
    RankOptions ranks;
    {
      absl::MutexLock lock(&mutex_);
      lease = lease_;
      ranks.silence = std::max(kLeastSilence, 2 * lease_time_);
    }
    int ordinal = 0;
    ranks.rank = rank;
    ranks.size = size;
    ranks.host = host_ == "localhost" ? "127.0.0.1" : host_;
    ranks.network.encrypted = !options_.trusted_network;
    ranks.network.worker = options_.name.empty() ? OwnHostName() : options_.name;
    ranks.is_cuda = CudaPluginOf(*device_, &ordinal) != nullptr;
    ranks.rendezvous_timeout = timeouts.rendezvous;
    ranks.connect_timeout = timeouts.connect;
    ranks.timeout = timeouts.wait;
    return ConnectRanks(
        ranks, client_->Store(lease, attempt.job_id(), attempt.attempt(), std::move(cancelled)),
        [&](std::unique_ptr<RendezvousStore> store, std::unique_ptr<PeerMonitor> monitor) {
          return ConnectNccl(*device_, rank, size, std::move(store), timeouts.wait,
                             std::move(monitor));
        });
  }

  // `answered`, if given: whether the coordinator let it join.
  absl::Status Join(const std::string& key, bool* answered = nullptr) {
    v1::JoinRequest request;
    request.set_name(options_.name.empty() ? OwnHostName() : options_.name);
    request.set_address(address_);
    *request.mutable_device() = description_;
    request.set_host(OwnHostName());
    request.set_idempotency_key(key);
    request.set_protocol_version(kProtocolVersion);
    service_->SetJoinKey(key);
    request.set_call_key(call_key_);
    if (shard_server_ != nullptr) {
      request.set_shards_address(JoinHostAndPort(host_, shard_server_->port()));
      request.set_shards_certificate(shard_server_->certificate());
    }
    absl::StatusOr<v1::JoinReply> reply = client_->Join(request);
    if (!reply.ok()) return reply.status();
    if (answered != nullptr) *answered = true;
    for (bool quick = false; !quick;) {
      const absl::Time begin = absl::Now();
      if (absl::Status s = storage_->Join(*reply); !s.ok()) {
        // Meanwhile it must not be given jobs.
        client_->Leave(reply->lease()).IgnoreError();
        return s;
      }
      quick = absl::Now() - begin < absl::Seconds(reply->heartbeat_seconds());
      // The lease may have ended before the first heartbeat; what was checked is not checked again.
      if (!quick) reply = client_->Join(request);
      if (!reply.ok()) return reply.status();
    }
    dataset_roots_->Exclude(storage_->PathOf(reply->data_dir()));
    {
      absl::MutexLock lock(&mutex_);
      lease_ = reply->lease();
      joined_ = true;
      last_answer_ = clock_.Now();
      announces_ = draining_;
      heartbeat_ = absl::Seconds(std::clamp(reply->heartbeat_seconds(), 0.01, 60.0));
      lease_time_ = absl::Seconds(std::clamp(reply->lease_seconds(), 0.05, 3600.0));
    }
    service_->SetEpoch(reply->lease().epoch());
    spdlog::info("joined {} as {} (epoch {}), serving on {}", options_.coordinator,
                 reply->lease().worker_id(), reply->lease().epoch(), address_);
    return absl::OkStatus();
  }

  // Retries an unreachable or overloaded coordinator; a rejection is final.
  static bool MayPass(const absl::Status& status) {
    return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
           absl::IsResourceExhausted(status) || absl::IsAborted(status);
  }

  absl::Status FirstJoin() {
    const absl::Time deadline = absl::Now() + options_.join_timeout;
    const std::string key = RandomKey();
    absl::Duration backoff = kFirstBackoff;
    for (int tries = 1;; ++tries) {
      bool answered = false;
      absl::Status s = Join(key, &answered);
      if (absl::IsUnauthenticated(s)) {
        return absl::UnauthenticatedError(
            absl::StrCat(s.message(),
                         "; start this worker with --join=TOKEN (espalier token create "
                         "--role=worker), or with --api-key-file, as espalierd was"));
      }
      if (s.ok() || !MayPass(s)) return s;
      if (tries == 1) {
        spdlog::warn("cannot join yet, and tries for {}: {}",
                     absl::FormatDuration(options_.join_timeout), std::string(s.message()));
      }
      if (answered && absl::Now() + backoff >= deadline) return s;
      if (absl::Now() + backoff >= deadline) {
        return absl::UnavailableError(absl::StrCat(
            "no coordinator answers at ", options_.coordinator, " after ", tries, " attempts in ",
            absl::FormatDuration(options_.join_timeout), " (", std::string(s.message()),
            "); is espalierd running there, and is --coordinator right?"));
      }
      absl::SleepFor(backoff);
      backoff = std::min(backoff * 2, kMaxBackoff);
    }
  }

  // Shorter once the worker drains, which it is about to announce. Returns false when stopping.
  bool SleepUnlessStopping(absl::Duration duration) {
    const absl::Time deadline = absl::Now() + duration;
    absl::MutexLock lock(&mutex_);
    while (!stopping_ && !std::exchange(announces_, false)) {
      if (stop_.WaitWithDeadline(&mutex_, deadline)) break;
    }
    return !stopping_;
  }

  // Until the coordinator knows it.
  void AnnounceDrain(const v1::Lease& lease) {
    const absl::StatusOr<v1::DrainReply> reply = client_->Drain(lease, kDrainTimeout);
    if (!reply.ok()) {
      spdlog::warn("cannot say that this worker is about to leave: {}",
                   std::string(reply.status().message()));
      const bool later = MayPass(reply.status()) || absl::IsFailedPrecondition(reply.status());
      if (!later) EndDrain();  // an older coordinator, for example
      return;
    }
    if (reply->jobs_size() > 0) {
      spdlog::info("waits until {} can do without this worker", absl::StrJoin(reply->jobs(), ", "));
    }
    absl::MutexLock lock(&mutex_);
    if (lease.epoch() != lease_.epoch()) return;
    announced_ = lease.epoch();
    if (reply->jobs_size() == 0) SetDrained();
  }

  void SetDrained() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    drained_ = true;
    drain_.SignalAll();
  }

  absl::Duration SinceAnswer() const {
    absl::MutexLock lock(&mutex_);
    return clock_.Now() - last_answer_;
  }

  void OnLeaseLost(const std::string& reason) {
    spdlog::warn("{}; aborting running jobs and joining again", reason);
    {
      absl::MutexLock lock(&mutex_);
      joined_ = false;
    }
    service_->SetEpoch(0);
    service_->AbortAll(reason);
  }

  void HeartbeatLoop() {
    absl::Duration backoff = kFirstBackoff;
    std::string key;
    std::optional<v1::Link> measured;  // until a heartbeat has told it
    while (true) {
      bool joined = false, announces = false;
      absl::Duration interval, lease_time;
      v1::HeartbeatRequest request;
      {
        absl::MutexLock lock(&mutex_);
        joined = joined_;
        interval = draining_ ? std::min(heartbeat_, kDrainHeartbeat) : heartbeat_;
        lease_time = lease_time_;
        *request.mutable_lease() = lease_;
      }
      if (!SleepUnlessStopping(joined ? interval : backoff)) return;
      if (!joined) {
        if (key.empty()) key = RandomKey();
        absl::Status s = Join(key);
        if (s.ok()) {
          key.clear();
          backoff = kFirstBackoff;
        } else {
          spdlog::warn("cannot join: {}", std::string(s.message()));
          backoff = std::min(backoff * 2, kMaxBackoff);
        }
        continue;
      }
      {
        absl::MutexLock lock(&mutex_);
        announces = draining_ && announced_ != lease_.epoch();
      }
      if (announces) AnnounceDrain(request.lease());
      for (const std::string& job : service_->running_jobs()) request.add_running_jobs(job);
      v1::Link link;
      if (service_->TakeLink(&link)) measured = std::move(link);
      if (measured.has_value()) *request.mutable_measured_link() = *measured;
      const absl::StatusOr<v1::HeartbeatReply> reply =
          client_->Heartbeat(request, std::max(interval, absl::Seconds(1)));
      const absl::Status& s = reply.status();
      if (s.ok()) {
        absl::MutexLock lock(&mutex_);
        last_answer_ = clock_.Now();
        if (reply->drained()) SetDrained();
        measured.reset();
      } else if (absl::IsFailedPrecondition(s) || absl::IsNotFound(s)) {
        OnLeaseLost(absl::StrCat("the lease is gone: ", std::string(s.message())));
      } else if (SinceAnswer() > lease_time) {
        OnLeaseLost(
            absl::StrCat("the lease ran out without an answer: ", std::string(s.message())));
      }
    }
  }

  void End(bool leave) {
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      stopping_ = true;
      stop_.SignalAll();
      drain_.SignalAll();
    }
    if (thread_.joinable()) thread_.join();
    if (service_ != nullptr) service_->AbortAll("the worker is shutting down");
    if (leave && !worker_id().empty()) {
      v1::Lease lease;
      {
        absl::MutexLock lock(&mutex_);
        lease = lease_;
      }
      client_->Leave(lease).IgnoreError();
    }
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
    service_.reset();
  }

  const JoinedCluster cluster_;
  const WorkerOptions& options_;
  bool on_loopback_ = false;  // for the coordinator
  std::optional<ApiKeys> keys_;
  const SteadyClock clock_;  // of the lease
  std::unique_ptr<Device> device_;
  v1::Device description_;
  std::unique_ptr<FileSystem> files_;
  TransportSecurity tls_;
  std::unique_ptr<CoordinatorClient> client_;
  std::unique_ptr<DatasetRoots> dataset_roots_;
  std::unique_ptr<HostCache> cache_;
  std::unique_ptr<DatasetStore> datasets_;
  std::optional<ShardCopies> shard_copies_;
  std::unique_ptr<WorkerStorage> storage_;
  std::string call_key_;  // which the coordinator shows
  std::unique_ptr<ShardServer> shard_server_;
  std::unique_ptr<WorkerService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::string host_;  // address at which peers reach this worker
  std::string address_;
  std::thread thread_;
  std::optional<CredentialWatch> credentials_;

  mutable absl::Mutex mutex_;
  absl::CondVar stop_, drain_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool announces_ ABSL_GUARDED_BY(mutex_) = false;  // wakes the heartbeats
  uint64_t announced_ ABSL_GUARDED_BY(mutex_) = 0;  // epoch of the lease under which it drains
  bool drained_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time last_answer_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool joined_ ABSL_GUARDED_BY(mutex_) = false;
  v1::Lease lease_ ABSL_GUARDED_BY(mutex_);
  absl::Duration heartbeat_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(1);
  absl::Duration lease_time_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(5);
};

}  // namespace

absl::StatusOr<std::unique_ptr<LocalWorker>> StartWorker(const WorkerOptions& options) {
  absl::StatusOr<JoinedCluster> joined = JoinCluster(options);
  if (!joined.ok()) return joined.status();
  auto worker = std::make_unique<LocalWorkerImpl>(*std::move(joined));
  if (absl::Status s = worker->Start(); !s.ok()) return s;
  return std::unique_ptr<LocalWorker>(std::move(worker));
}

}  // namespace espalier
