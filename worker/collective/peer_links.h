// Connections between ranks of different hosts. Each rank publishes its address in the rendezvous
// store, connects to the others and accepts their connections. Of a pair each end has one
// connection for what it sends and one for what it receives, so that the two directions never wait
// for each other.
//
// Whoever connects is let in only if it proves to be one of the expected ranks: by its certificate
// (tls_stream.h), and by a secret of the store. Others are ignored: they cannot end the meeting or
// hold it up.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/collective/byte_stream.h"
#include "worker/collective/rendezvous_store.h"

namespace espalier {

// How the ranks of an attempt use the network between hosts.
struct NetworkPolicy {
  bool encrypted = true;  // false: the operator trusts the network (--trusted-network)
  std::string worker;     // this rank's name for people; empty: none
};

struct PeerLinksOptions {
  int rank = 0;
  int size = 1;
  // Address or name by which the peers reach this machine. A rank listens at that address if an
  // interface has it, otherwise (a name, or the address of a NAT) at all.
  std::string host = "127.0.0.1";
  std::string purpose = "tensors";  // of the connections: what their keys in the store begin with
  NetworkPolicy network;
  // Of the rendezvous, and then of the connections; each for all peers together.
  absl::Duration connect_timeout = absl::Seconds(20);
};

// What a rank publishes.
struct PeerCard {
  std::string identity;  // HostIdentity(), or "?"
  std::string host, port;
  std::string secret;       // that a connecting rank shows
  std::string fingerprint;  // of its certificate; empty: in clear
  std::string worker;

  std::string Encode() const;
  // Returns nullopt if the text is none.
  static std::optional<PeerCard> Decode(const std::string& text);
};

struct PeerLink {
  std::string host;
  std::unique_ptr<ByteStream> out, in;
};

// "rank 1 (10.0.0.2)".
std::string NameOfRank(int rank, const std::string& host);

// Blocks until this rank is connected with all peers that `wanted` chooses; the choice must be the
// same at both ends of a pair. Returns, naming the pair, Unavailable or DeadlineExceeded, whose
// UnreachableRank is the peer; PermissionDenied if only some of the ranks encrypt.
absl::StatusOr<std::map<int, PeerLink>> ConnectPeers(
    const PeerLinksOptions& options, RendezvousStore& store,
    absl::FunctionRef<bool(int rank, const PeerCard& card)> wanted);

}  // namespace espalier
