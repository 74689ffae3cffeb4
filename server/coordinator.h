// The coordinator: store, worker registry, jobs, artifacts, metrics and their gRPC services in one
// object, which a test can run in its own process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/net/caller.h"
#include "base/net/transport_security.h"
#include "espalier/v1/models.pb.h"
#include "server/grpc_limits.h"
#include "server/recordings/retention.h"

namespace grpc {
class Service;
}

namespace espalier {

class AccessControl;
class ArtifactStore;
class CertificateAuthority;
class FileSystem;
class FolderCheckpointStore;
class CallInterceptor;
class JobRunner;
class JobStore;
class Metrics;
class OpRegistry;
class CalibratedPlanner;
class Rendezvous;
class WorkerRegistry;

struct CoordinatorOptions {
  std::string data_dir;
  // Folders of this host whose files clients may name as datasets; see DatasetRoots.
  std::vector<std::string> dataset_roots;
  // Opens the store with the jobs of a data folder. *id is that of kDataDirIdFile, and becomes that
  // of the jobs, by which object stores are marked as theirs. Null: SQLite in the folder.
  std::function<absl::StatusOr<std::unique_ptr<JobStore>>(
      FileSystem& files, const std::string& data_dir, std::string* id)>
      open_store;
  // Returns Unavailable once another coordinator may lead; asked before each call. Null: this one
  // always does.
  std::function<absl::Status()> leads;
  // Where jobs keep their checkpoints. "auto": in data_dir; workers that share it read and write it
  // themselves, the others through the coordinator. "coordinator": the same, but all go through the
  // coordinator. "s3://bucket[/prefix]": there.
  std::string checkpoint_store = "auto";
  // "s3://bucket[/prefix]": where artifacts are; those in data_dir are then copies. Empty: in
  // data_dir.
  std::string artifact_store;
  // "s3://bucket[/prefix]" or a folder: where recorded checkpoints are copied to, beside the
  // training (server/recordings/spool.h). Empty: nowhere.
  std::string spool;
  // False: data_dir is lost with this coordinator, so jobs with pushed examples are refused.
  bool keeps_pushed_examples = true;
  // Keys and certificates: never opened as a dataset, nor is anything in data_dir.
  std::vector<std::string> private_files;
  std::string listen = "127.0.0.1:0";
  absl::Duration lease = absl::Seconds(10);
  absl::Duration heartbeat;  // zero: a quarter of the lease
  // After a worker was lost or the coordinator restarted: how long a job waits for as many workers
  // as it had before it continues with fewer, counted from the first idle one. It takes them back
  // at a checkpoint once they are idle.
  absl::Duration recovery_grace_period = absl::Seconds(10);
  // See JobRunnerOptions.
  absl::Duration grow_after = absl::Seconds(10);
  absl::Duration grow_if_left = absl::Seconds(20);
  int max_attempts_without_progress = 5;
  // See JobRunnerOptions.
  int64_t record_bytes = int64_t{16} << 30;
  int64_t recordings_bytes = 0;
  std::function<DiskRoom()> disk;  // null: that of data_dir, if checkpoints are there
  double measure_seconds = 3;      // per plan, for measuring operators; 0: analytic costs only
  int message_limit_bytes = 64 << 20;
  GrpcLimits limits;
  const Clock* clock = nullptr;       // null: the system clock
  FileSystem* file_system = nullptr;  // null: the real file system
  // Returns who shows this "authorization" metadata, or Unauthenticated; called before every RPC.
  // Null: everyone may do everything.
  std::function<absl::StatusOr<Caller>(const std::string& authorization)> identify;
  // With `identify`: signs certificates for workers that join by a token, and makes callers known
  // by theirs. Must outlive the coordinator. Null: there are no tokens.
  const CertificateAuthority* authority = nullptr;
  absl::Duration worker_certificate_life = absl::Hours(24);
  std::string advertise;  // host:port that tokens name; empty: that of `listen`
  // With `identify`: whether gRPC's health service, which no interceptor can protect, is offered,
  // and other probes (CallKind::kProbe) need no key.
  bool open_probes = false;
  TransportSecurity tls;
  // For workers on this machine: also listen on loopback without TLS, on a port of its own, unless
  // `listen` already is such an address.
  bool loopback_port = false;
};

// Call Start, then Stop or the destructor; not restartable. Other methods are thread-safe.
class Coordinator {
 public:
  // Opens the store under data_dir. Returns FailedPrecondition if another coordinator holds it or
  // its version is newer, and DataLoss if it is damaged.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Open(CoordinatorOptions options);
  ~Coordinator();

  // Adds the service of another component (Inference). Call before Start; not owned.
  void AddService(grpc::Service* service);
  // Starts to listen and resumes active jobs.
  absl::Status Start();
  // Refuses new calls, ends watches, stops attempts (their jobs continue after the next start) and
  // joins all threads. Idempotent.
  void Stop();

  // Makes gRPC's health service report NOT_SERVING. Calls are still answered.
  void Drain();

  // Returns Unavailable while the data folder, or the store or the artifacts in it, is not where it
  // was at the start: looked at once a second. gRPC's health service then reports NOT_SERVING.
  absl::Status DataFolderStatus() const;

  std::string grpc_address() const;  // with the bound port; valid after Start
  // The address on which processes of this machine reach it without TLS; empty if there is none.
  // Valid after Start.
  std::string loopback_address() const;
  // Further values that Cluster.Status reports.
  void SetHttpAddress(std::string address);
  // Returns why a model cannot be served, for the reply to its upload.
  void SetServableCheck(std::function<absl::Status(const v1::Artifact&)> check);
  void SetServedModels(std::function<std::vector<std::string>(const Caller&)> list);

  Metrics& metrics();
  ArtifactStore& artifacts();
  JobStore& store();
  WorkerRegistry& workers();
  const FolderCheckpointStore& data_folder() const;
  Rendezvous& rendezvous();
  JobRunner& jobs();
  CalibratedPlanner& planner();
  const OpRegistry& operators() const;
  // Decides who may call what; other components add their resources before Start.
  AccessControl& access();
  // Wraps every RPC: access, metrics, logging, errors.
  CallInterceptor& interceptor();

 private:
  struct Parts;
  explicit Coordinator(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace espalier
