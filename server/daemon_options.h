// What espalierd's command line sets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/net/transport_security.h"
#include "server/coordinator.h"
#include "server/standby/shared_store.h"

namespace espalier {

struct DaemonOptions {
  std::string listen = "127.0.0.1:7070";          // host:port of gRPC
  std::string http_listen = "127.0.0.1:8080";     // host:port of HTTP; empty: no HTTP
  std::vector<std::string> http_allowed_origins;  // see OriginPolicy
  std::string data_dir = "espalier-data";
  std::string checkpoint_store = "auto";  // see CoordinatorOptions
  std::string artifact_store;             // see CoordinatorOptions
  std::string spool;                      // see CoordinatorOptions
  // Of recorded jobs; see CoordinatorOptions.
  int64_t record_bytes = CoordinatorOptions().record_bytes;
  int64_t recordings_bytes = 0;
  std::vector<std::string> dataset_roots;  // folders whose files clients may name as datasets
  std::string ready_file;  // gets the addresses as JSON once requests are served; empty: none

  SharedStoreOptions job_store;  // without endpoints: SQLite in data_dir

  int local_workers = 0;
  int64_t worker_memory = 0;  // bytes per local worker; 0: a share of the machine's
  std::string worker_swap_dir;
  int worker_threads = 0;  // per local worker; 0: a share of the cores

  int64_t serving_memory = 0;  // bytes of all models served in this process; 0: by the machine's
  int serving_threads = 0;     // 0: all cores but one
  std::string serving_swap_dir;
  int64_t response_store_bytes = 64 << 20;  // of stored responses of /v1/responses

  std::string api_key_file;     // empty: no authentication
  bool open_probes = false;     // probes need no key
  bool share_prefixes = false;  // requests with different keys share cached prefixes
  TlsFiles tls;
  // --tls=auto: certificates, and without api_key_file a key, of the daemon's own in data_dir.
  bool automatic_tls = false;
  std::string advertise;  // host:port[,...] by which others reach gRPC; empty: by `listen`
  absl::Duration worker_certificate_life = absl::Hours(24);
  bool insecure = false;  // allow addresses off loopback, and owners, without TLS and keys

  absl::Duration lease = absl::Seconds(10);
  absl::Duration worker_return =
      absl::Seconds(10);       // see CoordinatorOptions::recovery_grace_period
  double measure_seconds = 3;  // per plan, for measuring operators
  absl::Duration drain = absl::Seconds(30);
  GrpcLimits limits;
};

// Returns InvalidArgument that names the flag if a value is out of range, or if an address is off
// loopback without TLS and keys and `insecure` does not allow that.
absl::Status CheckDaemonOptions(const DaemonOptions& options);

}  // namespace espalier
