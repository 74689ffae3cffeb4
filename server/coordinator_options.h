// What a coordinator is started with.
#pragma once

#include <cstdint>
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
#include "server/grpc_limits.h"
#include "server/recordings/retention.h"

namespace espalier {

class CertificateAuthority;
class FileSystem;
class JobStore;

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

}  // namespace espalier
