// A complete worker in one object: espalier-worker's main() runs one, tests and espalierd
// --local-workers several.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/net/transport_security.h"

namespace espalier {

struct WorkerOptions {
  std::string coordinator;  // host:port; empty: by the token, or 127.0.0.1:7070
  // Address of the Worker service; empty: that of the interface that reaches the coordinator.
  std::string listen = "127.0.0.1:0";
  std::string advertise;       // host:port as others reach it; empty: from `listen`
  std::string name;            // display name; empty: host name
  int threads = 0;             // 0: all cores
  int64_t memory_limit = 0;    // bytes; 0: the device's default
  std::string swap_dir;        // swapped tensors of a CPU; empty: memory
  std::string device = "cpu";  // "cpu" or "cuda:N"
  std::string cuda_plugin;     // path; empty: next to the executable
  // Folders of this host whose files clients may name as datasets; see DatasetRoots.
  std::vector<std::string> dataset_roots;
  // Where this host has the coordinator's data folder, if it shares that; empty: where the
  // coordinator has it.
  std::string data_dir;
  std::string cache_dir;  // parent of HostCache; empty: the system's temporary directory
  // Where the worker keeps its certificate (KeptIdentityOptions::parents). Empty: in cache_dir.
  std::vector<std::string> identity_dirs;
  int64_t cache_bytes = int64_t{16} << 30;
  // A token of `espalier token create --role=worker`, or a file that holds one; empty: none. The
  // worker exchanges it for a certificate, which it keeps in identity_dirs (kept_identity.h).
  std::string join_token, join_file;
  // API keys (api_keys.h): the worker sends the first to the coordinator. Empty: none. Its own
  // service takes the coordinator's calls only, which show a key that the worker makes up.
  std::string api_key_file;
  // With a certificate this worker serves TLS; with a CA it uses TLS to the coordinator.
  TlsFiles tls;
  bool insecure = false;  // allow no TLS or no keys off loopback
  // Tensors between hosts pass in clear; the workers of a job must agree. False: encrypted, by keys
  // of each attempt (worker/collective/tls_stream.h).
  bool trusted_network = false;
  bool calibrate = true;  // false: report fixed plausible rates (tests)
  // Gives up if the coordinator is unreachable for this long at startup. Once joined, retries
  // without limit.
  absl::Duration join_timeout = absl::Seconds(30);
};

class LocalWorker {
 public:
  virtual ~LocalWorker() = default;  // stops

  // Address of the Worker service: host:port with the actual port.
  virtual std::string address() const = 0;
  // Assigned by the coordinator; empty while not joined.
  virtual std::string worker_id() const = 0;
  // Tells the coordinator that this worker is about to leave. Blocks until nothing uses it any
  // more, the time is over, EndDrain is called, or the coordinator has not answered for as long as
  // the lease; at once if the worker has not joined.
  virtual void Drain(absl::Duration timeout) = 0;
  // Ends the wait of a Drain. Thread-safe.
  virtual void EndDrain() = 0;
  // Ends a running job, leaves the coordinator, stops serving. Idempotent.
  virtual void Stop() = 0;
  // Stops at once, without telling the coordinator, as if the process had died. For tests.
  virtual void Abandon() = 0;
};

// Starts serving, then joins. Returns InvalidArgument for invalid options; Unavailable, naming the
// address and the attempts, if the coordinator does not answer within join_timeout.
absl::StatusOr<std::unique_ptr<LocalWorker>> StartWorker(const WorkerOptions& options);

}  // namespace espalier
