// Link contention: times of collectives and messages that cross a topology at the same time.
// Seconds, bytes.
//
// Concurrent collectives run in lockstep (CollectiveModel::CreateConcurrent).
//
// A device takes part in one message at a time, in the given order, so messages form rounds
// (RoundScheduler). On an edge, the messages of a round get equal shares; a message that ends
// leaves its share to the others (processor sharing: Kleinrock, "Queueing Systems" II, 1976). A
// message of b bytes among others of b_j thus ends after the sum of min(b, b_j) over the bandwidth,
// or after b over the single-flow bandwidth, if that is longer. It takes as long as on the worst
// edge of its path; this equals max-min fair sharing if messages that share an edge all have their
// bottleneck there.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "planner/machine/collectives.h"
#include "planner/machine/topology.h"

namespace espalier {

// Groups operations into rounds: each operation occupies some devices, starts as soon as they are
// free, and takes one round.
class RoundScheduler {
 public:
  explicit RoundScheduler(int devices) : next_(devices, 0) {}

  // Returns the round of the next operation: the first after all that occupy one of its devices.
  template <typename Devices>
  int Add(const Devices& devices) {
    int round = 0;
    for (int d : devices) round = std::max(round, next_[d]);
    for (int d : devices) next_[d] = round + 1;
    return round;
  }

 private:
  std::vector<int> next_;  // by device
};

// Caches its models by set of groups. Not thread-safe.
class ContentionModel {
 public:
  explicit ContentionModel(const Topology& topology) : topology_(topology) {}  // must outlive this

  struct Group {
    CollectiveModel::Kind kind = v1::CollectiveInstruction::KIND_UNSPECIFIED;
    const std::vector<int>* ranks = nullptr;
    double bytes = 0;  // of one rank's input
  };
  // Returns seconds by group, each with its fastest algorithm: 0 for a group of one rank, infinity
  // for groups that CreateConcurrent rejects.
  std::vector<double> Collectives(const std::vector<Group>& groups);

  struct Message {
    int from = 0, to = 0;  // different devices
    double bytes = 0;
  };
  std::vector<double> Messages(const std::vector<Message>& messages) const;

 private:
  // The models of a set of groups; most groups share one.
  struct Set {
    std::vector<CollectiveModel> models;
    std::vector<int> model_of_group;  // empty: rejected
  };
  const Set& SetOf(const std::vector<Group>& groups);
  void AddRound(const std::vector<Message>& messages, const std::vector<int>& members,
                std::vector<double>* seconds) const;

  const Topology& topology_;
  // Key: kind, number of ranks and ranks of each group.
  absl::flat_hash_map<std::vector<int>, std::unique_ptr<Set>> sets_;
  size_t numbers_kept_ = 0;  // in the keys
  std::vector<int> key_;     // scratch
};

}  // namespace espalier
