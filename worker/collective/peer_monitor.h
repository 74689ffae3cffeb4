// Finds out within seconds that nothing arrives any more from a rank on another host, although both
// ranks live: a firewall or a route that fails in one direction, a switch that is gone. Without it
// a rank waits for its peer for as long as a step may take, since TCP gives up after a quarter of
// an hour only.
//
// Each pair of ranks on different hosts keeps one TCP connection, on which both send a byte about
// once a second, whatever the ranks compute meanwhile.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/collective/descriptor.h"
#include "worker/collective/rendezvous_store.h"

namespace espalier {

struct PeerMonitorOptions {
  int rank = 0;
  int size = 1;
  std::string host = "127.0.0.1";  // address or name of this machine that the peers reach
  absl::Duration connect_timeout = absl::Seconds(20);  // for all peers together
  absl::Duration silence = absl::Seconds(20);          // after which a peer is lost
  bool same_host = false;                              // also watch ranks of this host; for tests
};

// Returns the rank that a PeerMonitor's error is about, also of one that was annotated
// (AnnotateError); nothing for other errors.
std::optional<int> UnreachableRank(const absl::Status& status);

class PeerMonitor {
 public:
  // Called once, from the monitor's thread, with Unavailable, which names both ranks and hosts.
  using OnSilence = std::function<void(const absl::Status&)>;

  // Blocks until the ranks of other hosts are connected. Returns null if there are none. Returns
  // Unavailable or DeadlineExceeded, naming the pair of ranks that cannot connect.
  static absl::StatusOr<std::unique_ptr<PeerMonitor>> Connect(const PeerMonitorOptions& options,
                                                              RendezvousStore& store);
  // After it no callback runs.
  ~PeerMonitor();

  // Starts to send and to listen. At most once. A peer that closes its connection, as it does at
  // the end of an attempt and when its process ends, is watched no longer.
  void Watch(OnSilence on_silence);

 private:
  struct Peer {
    std::string host;
    Descriptor socket;
    absl::Duration heard;  // time since Watch
  };

  explicit PeerMonitor(const PeerMonitorOptions& options) : options_(options) {}
  std::string Name(int rank, const std::string& host) const;
  absl::Status ConnectTo(int peer, const std::string& published, absl::Time deadline);
  absl::Status AcceptAll(int listener, const std::string& secret,
                         std::map<int, std::string> awaited, absl::Time deadline);
  void Loop(const OnSilence& on_silence);
  // Of bytes that have arrived, and of errors.
  absl::Status Read(int rank, Peer* peer, absl::Duration now);

  const PeerMonitorOptions options_;
  std::map<int, Peer> peers_;  // by rank; after Watch only the thread's
  Descriptor stop_;            // an eventfd
  std::thread thread_;
};

}  // namespace espalier
