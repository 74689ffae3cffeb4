// The coordinator: store, worker registry, jobs, artifacts, metrics and the gRPC services over
// them, in one object that a test can start in its own process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/net/api_keys.h"
#include "base/net/transport_security.h"

namespace grpc {
class Service;
}

namespace espalier {

class ArtifactStore;
class FileSystem;
class CallInterceptor;
class JobRunner;
class JobStore;
class Metrics;
class OpRegistry;
class CalibratedPlanner;
class Rendezvous;
class WorkerRegistry;

// What gRPC callers may use up. Beyond the bounds they get RESOURCE_EXHAUSTED, but for streams, for
// which a client's library waits.
struct GrpcLimits {
  int max_calls = 512;     // at once, each with a thread, of all callers; workers', probes and
                           // cancellations are not counted
  int max_streams = 1024;  // of one connection
  int64_t memory_bytes = int64_t{1} << 30;  // of messages that come and go
  int max_metadata_bytes = 16 << 10;        // of one call
  // Streams whose client neither sends nor takes anything for so long are cancelled.
  absl::Duration idle = absl::Minutes(5);
};

struct CoordinatorOptions {
  std::string data_dir;
  std::string listen = "127.0.0.1:0";
  absl::Duration lease = absl::Seconds(10);
  absl::Duration heartbeat;  // zero: a quarter of the lease
  // After a worker was lost or the coordinator was restarted: how long to wait for as many workers
  // as the job had, before it goes on with those that are there.
  absl::Duration recovery_grace_period = absl::Seconds(5);
  int max_attempts_without_progress = 5;
  double measure_seconds = 3;  // spent on measuring operators before a plan; 0: analytic only
  int message_limit_bytes = 64 << 20;
  GrpcLimits limits;
  const Clock* clock = nullptr;       // null: the system's
  FileSystem* file_system = nullptr;  // null: the real one
  // Decides on the value of the "authorization" metadata, before every RPC. Null: all may call.
  std::function<absl::Status(const std::string& method, const std::string& authorization)>
      authorize;
  // With `authorize`, gRPC's health service, before which nothing can stand, is there only if this
  // is set; other probes (CallKind::kProbe) want no key then.
  bool open_probes = false;
  ShownKey worker_key;  // shown to workers with every call; null: none
  TransportSecurity tls;
  // For workers of this machine: where `listen` is not on loopback in the clear (TLS, an address of
  // a network), listen there, too, on a port of its own.
  bool loopback_port = false;
};

// Start, then Stop or destruction; not restartable. Thread-safe but for those.
class Coordinator {
 public:
  // Opens the store under data_dir. FailedPrecondition if another coordinator holds it or it is of
  // a newer version; DataLoss if it is damaged.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Open(CoordinatorOptions options);
  ~Coordinator();

  // Another room's service (Inference). Before Start; not owned.
  void AddService(grpc::Service* service);
  // Begins to listen, and takes up the jobs that were running.
  absl::Status Start();
  // Refuses new calls, ends watches, stops the attempts (their jobs go on after the next start) and
  // waits for all threads. Idempotent.
  void Stop();

  // gRPC's health service says NOT_SERVING from now on; calls are answered still.
  void Drain();

  std::string grpc_address() const;  // with the port that was bound; after Start
  // Where processes of this machine reach it on loopback in the clear; empty if nowhere. After
  // Start.
  std::string loopback_address() const;
  // What Cluster.Status tells besides.
  void SetHttpAddress(std::string address);
  void SetServedModels(std::function<std::vector<std::string>()> list);

  Metrics& metrics();
  ArtifactStore& artifacts();
  JobStore& store();
  WorkerRegistry& workers();
  Rendezvous& rendezvous();
  JobRunner& jobs();
  CalibratedPlanner& planner();
  const OpRegistry& operators() const;
  // Stands before every RPC: authentication, metrics, logging, errors. See server/services/call_interceptor.h.
  CallInterceptor& interceptor();

 private:
  struct Parts;
  explicit Coordinator(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace espalier
