// Times of collectives and of messages that cross a topology at one time. Seconds, bytes.
//
// Collectives go step by step together (CollectiveModel::CreateConcurrent).
//
// Messages: each device takes part in one at a time, in the order given, so they go in rounds
// (RoundScheduler). On an edge the messages of a round have equal shares; one that is through leaves its
// share to the others (processor sharing: Kleinrock, "Queueing Systems" II, 1976), so that a
// message of b bytes beside others of b_j is through after the sum of min(b, b_j) over the
// bandwidth, or b over what one flow gets, if that is longer. It takes as long as on the worst edge
// of its path: what max-min fair shares give where those that share an edge all have their
// bottleneck there.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "planner/machine/collectives.h"
#include "planner/machine/topology.h"

namespace espalier {

// The order of things of which each holds some devices, where each begins as soon as it can and all
// take equally long.
class RoundScheduler {
 public:
  explicit RoundScheduler(int devices) : next_(devices, 0) {}

  // The round of the next thing: the first behind all that hold one of these devices.
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

// Keeps what it has found of sets of groups; not thread-safe.
class ContentionModel {
 public:
  explicit ContentionModel(const Topology& topology) : topology_(topology) {}  // must outlive this

  struct Group {
    CollectiveModel::Kind kind = v1::CollectiveInstruction::KIND_UNSPECIFIED;
    const std::vector<int>* ranks = nullptr;
    double bytes = 0;  // of one rank's input
  };
  // By group, each by the algorithm that is best for it. Groups of one rank take no time. Infinite
  // for what CreateConcurrent refuses.
  std::vector<double> Collectives(const std::vector<Group>& groups);

  struct Message {
    int from = 0, to = 0;  // different devices
    double bytes = 0;
  };
  std::vector<double> Messages(const std::vector<Message>& messages) const;

 private:
  // Models of a set of groups; few are different.
  struct Set {
    std::vector<CollectiveModel> models;
    std::vector<int> model_of_group;  // empty: refused
  };
  const Set& SetOf(const std::vector<Group>& groups);
  void AddRound(const std::vector<Message>& messages, const std::vector<int>& members,
                std::vector<double>* seconds) const;

  const Topology& topology_;
  // By kind, number of ranks and ranks of each group.
  absl::flat_hash_map<std::vector<int>, std::unique_ptr<Set>> sets_;
  size_t numbers_kept_ = 0;  // in the keys
  std::vector<int> key_;     // scratch
};

}  // namespace espalier
