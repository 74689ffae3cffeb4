// Times of collectives over a set of devices of a topology, by algorithm. Seconds, bytes.
//
// An algorithm is a list of steps that wait for each other. The flows of a step share the links: a
// directed edge gives each of its n flows 1/n of its bandwidth, a flow gets the least of its path,
// and the step lasts as long as its slowest flow. As all flows of a step carry the same bytes, that
// is, but for latencies, what max-min fair sharing gives too.
//
// With the ranks in tree order, so that what lies close in the tree is close in the algorithm:
//   ring       Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
//              MPICH" (2005). All-to-all: every rank sends to every other, all flows at once.
//              Broadcast: a chain.
//   tree       binomial reduce and broadcast, gather and scatter (the same paper). All-to-all:
//              Bruck et al., "Efficient algorithms for all-to-all communications" (1997).
//   halving_doubling   recursive halving and doubling (Rabenseifner, "Optimization of collective
//              reduction operations", 2004), most bytes between the nearest. Broadcast: scatter,
//              then all-gather. All-to-all: hypercube. Powers of two only.
//   hierarchical   a level for each level of the tree that cuts the ranks into equal groups:
//              reduce-scatter in the innermost, all-reduce across groups between those with the
//              same place in them, all-gather inside (Cho et al., "BlueConnect", 2019); a ring on
//              every level.
#pragma once

#include <array>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/machine/topology.h"
#include "espalier/v1/program.pb.h"

namespace espalier {

// Devices as they lie in the tree from left to right, so that the ring of them crosses the link of
// each node twice, once in each direction. The order in which the algorithms below place ranks,
// but for broadcasts, which start at their root and go outwards from it.
std::vector<int> TreeOrder(const Topology& topology, std::vector<int> ranks);

enum class CollectiveAlgorithm { kRing, kTree, kHalvingDoubling, kHierarchical };
constexpr int kNumCollectiveAlgorithms = 4;
const char* Name(CollectiveAlgorithm algorithm);

// One of several collectives that run at one time.
struct CollectiveGroup {
  v1::CollectiveInstruction::Kind kind = v1::CollectiveInstruction::KIND_UNSPECIFIED;
  std::vector<int> ranks;
};

struct CollectiveTime {
  double seconds = 0;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kRing;
};

// What measurements say of one algorithm: its latencies and its seconds per byte times these.
struct CollectiveFit {
  double latency_factor = 1;
  double bandwidth_factor = 1;
  bool available = true;  // false: the library that runs it has no such algorithm; not for kRing
};
// By algorithm, in the order of the enum.
using CollectiveFits = std::array<CollectiveFit, kNumCollectiveAlgorithms>;

// The steps of one collective over one set of ranks, by algorithm; a value that outlives the
// topology. Seconds costs a few operations per step with a different distance: make it once for a
// set of ranks and keep it.
class CollectiveModel {
 public:
  using Kind = v1::CollectiveInstruction::Kind;

  // `ranks`: device numbers; a broadcast starts at ranks[0], else the order is not important.
  // InvalidArgument: a rank that is no device or comes twice, no ranks, an unknown kind.
  static absl::StatusOr<CollectiveModel> Create(const Topology& topology, Kind kind,
                                                const std::vector<int>& ranks);

  // By group: the models of collectives that run side by side, step by step together, so that the
  // flows of all of them share the links in each step. All use one algorithm; whoever cannot, uses
  // the ring beside those that can. Where no link carries flows of two groups, each model is the
  // one that Create makes. Errors as Create; a device may be in one group only.
  static absl::StatusOr<std::vector<CollectiveModel>> CreateConcurrent(
      const Topology& topology, const std::vector<CollectiveGroup>& groups);

  // Whether they give the same times.
  bool operator==(const CollectiveModel&) const = default;

  int num_ranks() const { return num_ranks_; }
  // kRing and kTree always; see above for the others.
  bool Has(CollectiveAlgorithm algorithm) const { return has_[static_cast<int>(algorithm)]; }

  // `bytes` (>= 0) is one rank's input, as in rates.h. 0 for one rank. REQUIRES: Has(algorithm).
  double Seconds(CollectiveAlgorithm algorithm, double bytes, const CollectiveFit& fit = {}) const;
  // The fastest that is available; the first in the order of the enum if several are.
  CollectiveTime Best(double bytes, const CollectiveFits& fits = {}) const;

  // Seconds == fit.latency_factor * latency + fit.bandwidth_factor * transfer, where the flow that
  // a step waits for depends on the factors.
  struct Parts {
    double latency = 0;
    double transfer = 0;
  };
  Parts Split(CollectiveAlgorithm algorithm, double bytes, const CollectiveFit& fit = {}) const;

 private:
  friend class CollectiveBuilder;

  // Of one flow: latency + bytes / bandwidth.
  struct Line {
    double latency = 0;
    double bandwidth = 0;
    bool operator==(const Line&) const = default;
  };
  // `rounds` steps, each as long as the slowest of its lines with bytes / divisor.
  struct Phase {
    double rounds = 0;
    double divisor = 1;
    int first_line = 0;
    int end_line = 0;
    bool operator==(const Phase&) const = default;
  };

  CollectiveModel() = default;
  double Slowest(const Phase& phase, double bytes, const CollectiveFit& fit, Line* line) const;

  int num_ranks_ = 0;
  std::array<bool, kNumCollectiveAlgorithms> has_ = {};
  std::array<std::vector<Phase>, kNumCollectiveAlgorithms> phases_;
  std::vector<Line> lines_;
};

// For one question only: make the model and ask. Errors of Create; InvalidArgument too for an
// algorithm that these ranks cannot use, and for bytes that are negative or not finite.
absl::StatusOr<CollectiveTime> BestCollective(const Topology& topology, CollectiveModel::Kind kind,
                                              const std::vector<int>& ranks, double bytes,
                                              const CollectiveFits& fits = {});
absl::StatusOr<double> CollectiveSeconds(const Topology& topology, CollectiveModel::Kind kind,
                                         const std::vector<int>& ranks,
                                         CollectiveAlgorithm algorithm, double bytes,
                                         const CollectiveFit& fit = {});

struct CollectiveSample {
  double bytes = 0;  // one rank's input
  double seconds = 0;
};

// The factors (>= 0) with the least sum of squared relative errors over the samples. Samples that
// cannot tell latency from bandwidth (one size only) get one factor for both. InvalidArgument: no
// samples; bytes negative or not finite; seconds not positive and finite; an algorithm that the
// model has not; a model of one rank.
absl::StatusOr<CollectiveFit> FitCollective(const CollectiveModel& model,
                                            CollectiveAlgorithm algorithm,
                                            const std::vector<CollectiveSample>& samples);

}  // namespace espalier
