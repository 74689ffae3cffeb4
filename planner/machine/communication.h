// Times of messages and collectives as they were measured on a cluster (proto
// CommunicationProfile). Seconds, bytes.
//
// Fewer bytes are taken not to take longer. Between measured sizes times are linear in the size,
// beyond the largest they go on as between the last two. Groups of a size that nobody measured take
// what the ring takes (rates.h) over a link that is fitted to the nearest size that was measured
// (FitCollective).
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

  // InvalidArgument names the entry that is wrong: numbers that are negative or not finite, an
  // unknown kind, fewer than 2 ranks, the same size twice, more than 100000 entries.
  static absl::StatusOr<CommunicationModel> Create(const v1::CommunicationProfile& profile);

  struct Message {
    double send = 0;  // for which the sender is busy; 0: it takes part until the message is there
    double receive = 0;  // from when it has been sent and is waited for
  };
  // Nothing where none was measured.
  std::optional<Message> MessageSeconds(double bytes) const;
  // `bytes` is one rank's input, as in rates.h. Nothing where no group met for this kind.
  std::optional<double> CollectiveSeconds(Kind kind, int ranks, double bytes) const;

 private:
  // (bytes, seconds), ascending in bytes.
  using Curve = std::vector<std::pair<double, double>>;
  struct Group {
    Curve curve;
    v1::Link link;  // over which the ring takes as long, as far as one link can say it
  };

  CommunicationModel() = default;
  static double At(const Curve& curve, double bytes);

  Curve send_, receive_;
  std::map<Kind, std::map<int, Group>> groups_;  // by kind and number of ranks
};

}  // namespace espalier
