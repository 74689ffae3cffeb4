// A whole worker as an object: the program espalier-worker is a main() around it, and tests and the
// coordinator's in-process mode hold several.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/net/transport_security.h"

namespace espalier {

struct WorkerOptions {
  std::string coordinator;             // host:port
  std::string listen = "127.0.0.1:0";  // of the Worker service
  std::string advertise;               // host:port as others reach it; empty: from `listen`
  std::string name;                    // for people; empty: host name
  int threads = 0;                     // 0: all cores
  int64_t memory_limit = 0;            // bytes; 0: the device's choice
  std::string swap_dir;                // of a CPU worker: for swapped tensors; empty: memory
  std::string device = "cpu";          // "cpu" or "cuda:N"
  std::string cuda_plugin;             // path; empty: beside the program
  std::string cache_dir;  // downloaded datasets; empty: below the system's temporary directory
  // Keys (api_keys.h): the first is shown to the coordinator, one of them is wanted of whoever
  // calls the Worker service. Empty: none, on loopback.
  std::string api_key_file;
  // With a certificate this worker serves TLS; with a CA it speaks TLS to the coordinator. Tensors
  // that workers exchange are never encrypted.
  TlsFiles tls;
  bool insecure = false;  // allow what is in the clear or wants no key off loopback
  bool calibrate = true;  // false: report fixed, plausible rates at once (tests)
  // Give up if the coordinator cannot be reached for this long at the start; it is retried for ever
  // once the worker has joined.
  absl::Duration join_timeout = absl::Seconds(30);
};

class LocalWorker {
 public:
  virtual ~LocalWorker() = default;  // stops

  // Of the Worker service: host:port with the real port.
  virtual std::string address() const = 0;
  // Given by the coordinator; empty while not joined.
  virtual std::string worker_id() const = 0;
  // Ends a running job, leaves the coordinator, stops serving. Idempotent.
  virtual void Stop() = 0;
  // Stops at once, as if the process had died: the coordinator is not told. For tests.
  virtual void Abandon() = 0;
};

// Serves, then joins. InvalidArgument for options that make no sense; Unavailable, naming the
// address and the attempts, if the coordinator does not answer within join_timeout.
absl::StatusOr<std::unique_ptr<LocalWorker>> StartWorker(const WorkerOptions& options);

}  // namespace espalier
