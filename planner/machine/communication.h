// Times of messages and collectives as measured on a cluster (proto CommunicationProfile). Seconds,
// bytes.
//
// Curves are made monotonic in the bytes. Times are linear between measured sizes; beyond the
// largest they extrapolate the last two. A group size without measurements uses the ring algorithm
// (rates.h) over a link fitted to the nearest measured size (FitCollective).
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/program.pb.h"

namespace espalier {

class CommunicationModel {
 public:
  using Kind = v1::CollectiveInstruction::Kind;

  // Returns InvalidArgument, with the bad entry, for negative or non-finite numbers, an unknown
  // kind, fewer than 2 ranks, a repeated size, or more than 100000 entries.
  static absl::StatusOr<CommunicationModel> Create(const v1::CommunicationProfile& profile);

  struct Message {
    double send = 0;     // time for which the sender is busy; 0: until the message has arrived
    double receive = 0;  // from the send's end, while the receiver waits
  };
  // Returns nothing if no message was measured.
  std::optional<Message> MessageSeconds(double bytes) const;
  // `bytes` is one rank's input, as in rates.h. Returns nothing if this kind was not measured.
  std::optional<double> CollectiveSeconds(Kind kind, int ranks, double bytes) const;

 private:
  // (bytes, seconds), ascending in bytes.
  using Curve = std::vector<std::pair<double, double>>;
  struct Group {
    Curve curve;
    v1::Link link;  // a fit: over this link the ring takes about as long
  };

  CommunicationModel() = default;
  static double At(const Curve& curve, double bytes);

  Curve send_, receive_;
  std::map<Kind, std::map<int, Group>> groups_;  // by kind and number of ranks
};

}  // namespace espalier
