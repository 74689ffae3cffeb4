// Finds out within seconds that nothing arrives any more from a rank on another host, although both
// ranks live: a firewall or a route that fails in one direction, a switch that is gone. Without it
// a rank waits for its peer for as long as a step may take, since TCP gives up after a quarter of
// an hour only.
//
// Ranks on different hosts keep connections (peer_links.h) on which both send a byte about
// once a second, whatever the ranks compute meanwhile.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/collective/descriptor.h"
#include "worker/collective/peer_links.h"
#include "worker/collective/rendezvous_store.h"

namespace espalier {

struct PeerMonitorOptions {
  int rank = 0;
  int size = 1;
  std::string host = "127.0.0.1";  // address or name of this machine that the peers reach
  NetworkPolicy network;
  absl::Duration connect_timeout = absl::Seconds(20);  // see PeerLinksOptions
  absl::Duration silence = absl::Seconds(20);          // after which a peer is lost
  bool same_host = false;                              // also watch ranks of this host; for tests
};

class PeerMonitor {
 public:
  // Called once, from the monitor's thread, with Unavailable, which names both ranks and hosts, and
  // whose UnreachableRank is the silent one.
  using OnSilence = std::function<void(const absl::Status&)>;

  // Blocks until the ranks of other hosts are connected. Returns null if there are none. Errors are
  // those of ConnectPeers.
  static absl::StatusOr<std::unique_ptr<PeerMonitor>> Connect(const PeerMonitorOptions& options,
                                                              RendezvousStore& store);
  // After it no callback runs.
  ~PeerMonitor();

  // Starts to send and to listen. At most once. A peer that closes its connection, as it does at
  // the end of an attempt and when its process ends, is watched no longer.
  void Watch(OnSilence on_silence);

 private:
  struct Peer {
    PeerLink link;
    absl::Duration heard;  // time since Watch
    bool open = true;      // false: the peer has closed it
  };

  explicit PeerMonitor(const PeerMonitorOptions& options) : options_(options) {}
  void Loop(const OnSilence& on_silence);
  // Of bytes that have arrived, and of errors.
  absl::Status Read(int rank, Peer* peer, absl::Duration now);

  const PeerMonitorOptions options_;
  std::map<int, Peer> peers_;  // by rank; after Watch only the thread's
  Descriptor stop_;            // an eventfd
  std::thread thread_;
};

}  // namespace espalier
