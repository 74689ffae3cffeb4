// Times of collectives over a set of devices of a topology, by algorithm. Seconds, bytes.
//
// An algorithm is a list of steps that wait for each other. The flows of a step share the links: a
// directed edge gives each of its n flows 1/n of its bandwidth, a flow gets the least of its path,
// and the step lasts as long as its slowest flow. As all flows of a step carry the same bytes, this
// equals max-min fair sharing, except for latencies.
//
// Ranks are in tree order, so that neighbors in the algorithm are close in the tree:
//   ring       Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
//              MPICH" (2005). All-to-all: every rank sends to every other, all flows at once.
//              Broadcast: a chain.
//   tree       binomial reduce and broadcast, gather and scatter (the same paper). All-to-all:
//              Bruck et al., "Efficient algorithms for all-to-all communications" (1997).
//   halving_doubling   recursive halving and doubling (Rabenseifner, "Optimization of collective
//              reduction operations", 2004), most bytes between the nearest. Broadcast: scatter,
//              then all-gather. All-to-all: hypercube. Powers of two only.
//   hierarchical   one level for each tree level that divides the ranks into equal groups:
//              reduce-scatter in the innermost group, all-reduce across groups between ranks of the
//              same position, all-gather inside (Cho et al., "BlueConnect", 2019); a ring on every
//              level.
#pragma once

#include <array>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/program.pb.h"
#include "planner/machine/topology.h"

namespace espalier {

// Returns the ranks in the order of the tree's leaves, in which a ring crosses each node's link
// twice, once per direction. The algorithms below use this order, except broadcasts, which start at
// their root and go outwards from it.
std::vector<int> TreeOrder(const Topology& topology, std::vector<int> ranks);

enum class CollectiveAlgorithm { kRing, kTree, kHalvingDoubling, kHierarchical };
constexpr int kNumCollectiveAlgorithms = 4;
const char* Name(CollectiveAlgorithm algorithm);

// One of several collectives that run at the same time.
struct CollectiveGroup {
  v1::CollectiveInstruction::Kind kind = v1::CollectiveInstruction::KIND_UNSPECIFIED;
  std::vector<int> ranks;
};

struct CollectiveTime {
  double seconds = 0;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kRing;
};

// A fit to measurements of one algorithm: factors for its latencies and its seconds per byte.
struct CollectiveFit {
  double latency_factor = 1;
  double bandwidth_factor = 1;
  bool available = true;  // false: the collective library lacks it; kRing is always available
};
// By algorithm, in the order of the enum.
using CollectiveFits = std::array<CollectiveFit, kNumCollectiveAlgorithms>;

// The steps of one collective over one set of ranks, by algorithm. Independent of the topology once
// made. Seconds() costs a few operations per distinct step: make the model once per set of ranks
// and keep it.
class CollectiveModel {
 public:
  using Kind = v1::CollectiveInstruction::Kind;

  // `ranks`: device numbers; a broadcast starts at ranks[0], otherwise the order does not matter.
  // Returns InvalidArgument for a rank that is no device or repeated, no ranks, or an unknown kind.
  static absl::StatusOr<CollectiveModel> Create(const Topology& topology, Kind kind,
                                                const std::vector<int>& ranks);

  // Returns, by group, models of collectives that run concurrently in lockstep, so that the flows
  // of all groups share the links in each step. All groups use one algorithm; a group that does not
  // support it uses the ring. If no link carries flows of two groups, each model equals Create's.
  // Errors as Create; a device may be in one group only.
  static absl::StatusOr<std::vector<CollectiveModel>> CreateConcurrent(
      const Topology& topology, const std::vector<CollectiveGroup>& groups);

  // Equal models give the same times.
  bool operator==(const CollectiveModel&) const = default;

  int num_ranks() const { return num_ranks_; }
  // Always true for kRing and kTree; see the file comment for the others.
  bool Has(CollectiveAlgorithm algorithm) const { return has_[static_cast<int>(algorithm)]; }

  // `bytes` (>= 0) is one rank's input, as in rates.h. Returns 0 for one rank. REQUIRES:
  // Has(algorithm).
  double Seconds(CollectiveAlgorithm algorithm, double bytes, const CollectiveFit& fit = {}) const;
  // Returns the fastest available algorithm; the first in the order of the enum on a tie.
  CollectiveTime Best(double bytes, const CollectiveFits& fits = {}) const;

  // Splits Seconds into fit.latency_factor * latency + fit.bandwidth_factor * transfer. Which flow
  // a step waits for depends on the factors.
  struct Parts {
    double latency = 0;
    double transfer = 0;
  };
  Parts Split(CollectiveAlgorithm algorithm, double bytes, const CollectiveFit& fit = {}) const;

 private:
  friend class CollectiveBuilder;

  // One flow's time: latency + bytes / bandwidth.
  struct Line {
    double latency = 0;
    double bandwidth = 0;
    bool operator==(const Line&) const = default;
  };
  // `rounds` steps, each as long as its slowest line for bytes / divisor.
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

// One-shot versions that make the model and query it. Errors as Create; InvalidArgument also for an
// algorithm that does not support the ranks, and for negative or non-finite bytes.
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

// Returns the factors (>= 0) with the least sum of squared relative errors over the samples.
// Samples of a single size cannot separate latency from bandwidth and give one factor for both.
// Returns InvalidArgument for no samples, invalid bytes or seconds, an algorithm that the model
// lacks, or a model of one rank.
absl::StatusOr<CollectiveFit> FitCollective(const CollectiveModel& model,
                                            CollectiveAlgorithm algorithm,
                                            const std::vector<CollectiveSample>& samples);

}  // namespace espalier
