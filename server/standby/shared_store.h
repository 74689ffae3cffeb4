// The job store in etcd that several coordinators share, and the election of the one that leads.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file_system.h"
#include "base/net/transport_security.h"
#include "server/election/leadership.h"
#include "server/standby/job_store_address.h"
#include "server/store/etcd/etcd_client.h"
#include "server/store/job_store.h"

namespace espalier {

struct SharedStoreOptions {
  JobStoreAddress address;
  TlsFiles tls;                              // to etcd: ca, certificate, key
  std::string user, password_file;           // empty: etcd asks for none
  absl::Duration lease = absl::Seconds(10);  // after which another coordinator leads
  bool insecure = false;                     // allows etcd off loopback without TLS
};

// Returns InvalidArgument that names the flag.
absl::Status CheckSharedStoreOptions(const SharedStoreOptions& options);

// What the coordinators' data folders are: one that all see, or one for each, with what lasts in an
// object store.
enum class DataFolders { kShared, kOwn };

class SharedStore {
 public:
  // Stands for election from now on, as the coordinator that others reach at `candidate`. `lost` is
  // called once it led and no longer does: see Leadership.
  static absl::StatusOr<std::unique_ptr<SharedStore>> Start(
      const SharedStoreOptions& options, const std::string& candidate,
      std::function<void(const std::string& why)> lost);

  bool leads() const { return leadership_->election().won().has_value(); }
  // Returns Unavailable unless this coordinator surely leads.
  absl::Status CheckLeads() const;
  // "standby; the leader is 10.0.0.1:7070"
  std::string Describe() const { return leadership_->election().Describe(); }

  // Opens the store, once it leads. *id is the data folder's; kShared: FailedPrecondition if the
  // jobs are another folder's; kOwn: becomes that of the jobs, the same for all coordinators.
  absl::StatusOr<std::unique_ptr<JobStore>> Open(FileSystem& files, const std::string& data_dir,
                                                 DataFolders folders, std::string* id);
  // Lets another coordinator lead at once. Nothing may be written after it.
  void Resign() { leadership_->Resign(); }

 private:
  explicit SharedStore(JobStoreAddress address) : address_(std::move(address)) {}

  const JobStoreAddress address_;
  TransportSecurity tls_;
  // The election's calls must not wait for the store's, and give up earlier.
  std::unique_ptr<EtcdClient> election_client_, store_client_;
  std::unique_ptr<ElectionStore> election_store_;
  std::unique_ptr<MonotonicClock> clock_;
  std::unique_ptr<Leadership> leadership_;
};

// Returns whether the data folder says that its jobs are in this store, and FailedPrecondition,
// with the remedy, if they are in another one: a coordinator without its jobs would take what is in
// the folder for left over. An empty address: SQLite.
absl::StatusOr<bool> CheckDataFolder(FileSystem& files, const std::string& data_dir,
                                     const JobStoreAddress& address);
// Checks that, and notes in the data folder which store has its jobs.
absl::Status ClaimDataFolder(FileSystem& files, const std::string& data_dir,
                             const JobStoreAddress& address);

}  // namespace espalier
