#include "worker/local_worker.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/net/api_keys.h"
#include "base/net/authenticated_channel.h"
#include "base/net/credential_watch.h"
#include "base/net/grpc_status.h"
#include "base/net/leading_channel.h"
#include "base/net/listen_error.h"
#include "base/net/own_address.h"
#include "base/random_id.h"
#include "worker/cluster_membership.h"
#include "worker/collective/host_identity.h"
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

constexpr uint32_t kProtocolVersion = 4;
// A rank is not lost sooner for being silent to another one.
constexpr absl::Duration kLeastSilence = absl::Seconds(10);
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
    storage.connect = [this] { return client_->NewStorage(); };
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
    return Join();
  }

  std::string address() const override { return address_; }
  std::string worker_id() const override { return membership_->worker_id(); }
  void Drain(absl::Duration timeout) override { membership_->Drain(timeout); }
  void EndDrain() override { membership_->EndDrain(); }
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
    if (server_ == nullptr || port == 0) return CannotListen(options_.listen);
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
    const ClusterMembership::Lease lease = membership_->lease();
    RankOptions ranks;
    ranks.silence = std::max(kLeastSilence, 2 * lease.time);
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
        ranks,
        client_->Store(lease.lease, attempt.job_id(), attempt.attempt(), std::move(cancelled)),
        [&](std::unique_ptr<RendezvousStore> store, std::unique_ptr<PeerMonitor> monitor) {
          return ConnectNccl(*device_, rank, size, std::move(store), timeouts.wait,
                             std::move(monitor));
        });
  }

  absl::Status Join() {
    ClusterMembershipOptions membership;
    membership.coordinator = options_.coordinator;
    v1::JoinRequest& request = membership.request;
    request.set_name(options_.name.empty() ? OwnHostName() : options_.name);
    request.set_address(address_);
    *request.mutable_device() = description_;
    request.set_host(OwnHostName());
    request.set_protocol_version(kProtocolVersion);
    request.set_call_key(call_key_);
    if (shard_server_ != nullptr) {
      request.set_shards_address(JoinHostAndPort(host_, shard_server_->port()));
      request.set_shards_certificate(shard_server_->certificate());
    }
    request.set_tensors_between_hosts(options_.trusted_network ? v1::JoinRequest::IN_CLEAR
                                                               : v1::JoinRequest::ENCRYPTED);
    request.set_shared_memory_id(HostIdentity());
    membership.join_timeout = options_.join_timeout;
    membership.client = client_.get();
    membership.service = service_.get();
    membership.storage = storage_.get();
    membership.on_joined = [this](const v1::JoinReply& reply) {
      dataset_roots_->Exclude(storage_->PathOf(reply.data_dir()));
    };
    membership_.emplace(std::move(membership));
    return membership_->Start();
  }

  void End(bool leave) {
    if (ended_.exchange(true)) return;
    if (membership_.has_value()) membership_->Stop();
    if (service_ != nullptr) service_->AbortAll("the worker is shutting down");
    if (leave && membership_.has_value()) membership_->Leave();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
    service_.reset();
  }

  const JoinedCluster cluster_;
  const WorkerOptions& options_;
  bool on_loopback_ = false;  // for the coordinator
  std::optional<ApiKeys> keys_;
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
  std::optional<ClusterMembership> membership_;  // once it serves
  std::optional<CredentialWatch> credentials_;
  std::atomic<bool> ended_{false};
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
