// FindCollectiveSteps: the steps of each algorithm.
#include "planner/machine/collective_steps.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace espalier {
namespace {

using Collective = v1::CollectiveInstruction;

bool IsPowerOfTwo(int n) { return (n & (n - 1)) == 0; }

// Orders ranks for a broadcast: the root, then the rest of its innermost group, and so on, so that
// groups stay together.
std::vector<int> OutwardsOrder(const Topology& topology, const std::vector<int>& ranks) {
  const int root = topology.DeviceNode(ranks[0]);
  std::vector<std::pair<int, int>> keyed;  // minus the depth of its common ancestor with the root
  for (int device : TreeOrder(topology, ranks)) {
    keyed.emplace_back(-topology.Depth(topology.CommonAncestor(root, topology.DeviceNode(device))),
                       device);
  }
  std::stable_sort(keyed.begin(), keyed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<int> order;
  for (auto [depth, device] : keyed) order.push_back(device);
  return order;
}

// Flows connect positions, that is, indices into the ranks in tree order.
class StepsFinder {
 public:
  StepsFinder(const Topology& topology, CollectiveModel::Kind kind, const std::vector<int>& ranks)
      : topology_(topology),
        kind_(kind),
        n_(static_cast<int>(ranks.size())),
        order_(kind == Collective::BROADCAST ? OutwardsOrder(topology, ranks)
                                             : TreeOrder(topology, ranks)) {}

  CollectiveSteps Find() {
    Begin(CollectiveAlgorithm::kRing);
    if (n_ > 1) Ring();
    Begin(CollectiveAlgorithm::kTree);
    if (n_ > 1) Tree();
    if (n_ == 1) return std::move(found_);
    if (IsPowerOfTwo(n_)) {
      Begin(CollectiveAlgorithm::kHalvingDoubling);
      HalvingDoubling();
    }
    if (const std::vector<int> sizes = LevelSizes(); sizes.size() > 1) {
      Begin(CollectiveAlgorithm::kHierarchical);
      Hierarchical(sizes);
    }
    return std::move(found_);
  }

 private:
  void Begin(CollectiveAlgorithm algorithm) {
    steps_ = &found_[static_cast<int>(algorithm)].emplace();
  }

  void Flow(int from, int to) { flows_.emplace_back(order_[from], order_[to]); }

  // Ends a step with the flows added so far; it repeats `rounds` times with bytes / divisor each.
  void Step(double rounds, double divisor) {
    CollectiveStep& step = steps_->emplace_back();
    step.rounds = rounds;
    step.divisor = divisor;
    step.flows.swap(flows_);
  }

  void Ring() {
    switch (kind_) {
      case Collective::ALL_TO_ALL:
        AllPairs(1, n_, n_);
        return;
      case Collective::BROADCAST:
        Chain();
        return;
      case Collective::ALL_REDUCE:
        RingStep(1, n_, 2, n_);
        return;
      case Collective::REDUCE_SCATTER:
        RingStep(1, n_, 1, n_);
        return;
      default:
        RingStep(1, n_, 1, 1);
    }
  }

  // `times` rounds around rings of `size` positions, `stride` apart; every rank is in one ring.
  void RingStep(int stride, int size, int times, double divisor) {
    for (int p = 0; p < n_; ++p) {
      const int place = p / stride % size;
      Flow(p, p + (place + 1 < size ? stride : -place * stride));
    }
    Step(static_cast<double>(times) * (size - 1), divisor);
  }

  void Chain() {
    for (int p = 0; p + 1 < n_; ++p) {
      Flow(p, p + 1);
      Step(1, 1);
    }
  }

  // All-to-all within each group of `size` positions `stride` apart, all pairs at once: an edge
  // carries a flow for each pair of a group that it separates. Counts them from the ranks below
  // each edge; a list of flows would be O(n^2). size - 1 rounds of bytes / divisor to one other
  // rank each.
  void AllPairs(int stride, int size, double divisor) {
    std::vector<int> below(topology_.num_nodes(), 0);
    std::vector<int> touched;
    for (int device : order_) {
      for (int v = topology_.DeviceNode(device); v > 0; v = topology_.Parent(v)) {
        if (below[v]++ == 0) touched.push_back(v);
      }
    }
    const double others = size - 1;
    CollectiveStep& step = steps_->emplace_back();
    step.rounds = others;
    step.divisor = divisor;
    for (int v : touched) {
      // A node lies inside one block of groups, or covers whole blocks and then separates no group.
      if (below[v] >= stride * size) continue;
      const double each = below[v] / stride;  // members of a group below the edge, or one more
      const double more = below[v] % stride;  // number of groups with one more
      const double pairs =
          more * (each + 1) * (size - each - 1) + (stride - more) * each * (size - each);
      if (pairs == 0) continue;
      // Rounds of one rank that cross this edge, in sequence.
      double rounds = 0;
      if (more > 0) rounds = std::max({rounds, each + 1, size - each - 1});
      if (each > 0) rounds = std::max({rounds, each, size - each});
      for (const int edge : {Topology::UpEdge(v), Topology::DownEdge(v)}) {
        step.edges.push_back({edge, pairs / others, rounds / others});
      }
    }
    for (int p = 0; p < n_; ++p) {
      if (p / stride % size == 0) step.latency = std::max(step.latency, Widest(p, stride, size));
    }
  }

  // Largest latency between two ranks of a group. In a tree, the rank farthest from any point is an
  // end of a longest path.
  double Widest(int start, int stride, int size) const {
    double widest = 0;
    int from = start;
    for (int sweep = 0; sweep < 2; ++sweep) {
      int far = from;
      for (int i = 0; i < size; ++i) {
        const int p = start + i * stride;
        const double latency = topology_.Latency(order_[from], order_[p]);
        if (latency <= widest) continue;
        widest = latency;
        far = p;
      }
      from = far;
    }
    return widest;
  }

  // Binomial steps from the root of each group of `size` positions `stride` apart, for the first
  // `holders` positions. f(d, blocks): a step over distance d whose largest message carries
  // `blocks` of the group's blocks when it scatters.
  template <typename AddStep>
  void Binomial(int holders, int stride, int size, AddStep add_step) {
    for (int d = 1; d < size; d *= 2) {
      for (int place = 0; place + d < size; place += 2 * d) {
        for (int p = 0; p < holders; ++p) Flow(p + place * stride, p + (place + d) * stride);
      }
      add_step(std::min(d, size - d));
    }
  }

  void Tree() {
    if (kind_ == Collective::ALL_TO_ALL) {
      Bruck();
      return;
    }
    // Links are symmetric, so reduce is broadcast backwards and gather is scatter backwards.
    const double n = n_;
    switch (kind_) {
      case Collective::ALL_REDUCE:
        Binomial(1, 1, n_, [&](int) { Step(2, 1); });
        return;
      case Collective::ALL_GATHER:
        Binomial(1, 1, n_, [&](int blocks) { Step(1, 1.0 / blocks); });
        Binomial(1, 1, n_, [&](int) { Step(1, 1 / n); });
        return;
      case Collective::REDUCE_SCATTER:
        Binomial(1, 1, n_, [&](int) { Step(1, 1); });
        Binomial(1, 1, n_, [&](int blocks) { Step(1, n / blocks); });
        return;
      default:
        Binomial(1, 1, n_, [&](int) { Step(1, 1); });
    }
  }

  // Blocks whose distance has bit d set travel d further.
  void Bruck() {
    for (int d = 1; d < n_; d *= 2) {
      int blocks = 0;
      for (int j = 1; j < n_; ++j) blocks += (j & d) != 0;
      for (int p = 0; p < n_; ++p) Flow(p, (p + d) % n_);
      Step(1, static_cast<double>(n_) / blocks);
    }
  }

  void HalvingDoubling() {
    const double n = n_;
    if (kind_ == Collective::BROADCAST) {
      Binomial(1, 1, n_, [&](int blocks) { Step(1, n / blocks); });
    }
    for (int d = 1; d < n_; d *= 2) {
      for (int p = 0; p < n_; ++p) Flow(p, p ^ d);
      switch (kind_) {
        case Collective::ALL_REDUCE:
          Step(2, 2.0 * d);
          break;
        case Collective::ALL_GATHER:
          Step(1, 2.0 * d / n);
          break;
        case Collective::ALL_TO_ALL:
          Step(1, 2);
          break;
        default:  // the all-gather of a broadcast starts with 1/n
          Step(1, 2.0 * d);
      }
    }
  }

  // The number of parts at each level of the tree, innermost first; the product is n. Skips levels
  // that would divide the ranks unequally.
  std::vector<int> LevelSizes() const {
    std::vector<int> meet(n_ - 1);  // depth of the common ancestor of neighbors
    int deepest = 0;
    for (int p = 0; p + 1 < n_; ++p) {
      meet[p] = topology_.Depth(topology_.CommonAncestor(topology_.DeviceNode(order_[p]),
                                                         topology_.DeviceNode(order_[p + 1])));
      deepest = std::max(deepest, meet[p]);
    }
    std::vector<int> sizes;
    int done = 1;
    for (int depth = deepest; depth >= 0 && done < n_; --depth) {
      const int group = EqualGroups(meet, depth);
      if (group <= done) continue;
      sizes.push_back(group / done);
      done = group;
    }
    return sizes;
  }

  // Ranks per group if neighbors with a common ancestor above `depth` are separated; 0 if unequal.
  int EqualGroups(const std::vector<int>& meet, int depth) const {
    int group = 0;
    int start = 0;
    for (int p = 0; p < n_; ++p) {
      if (p + 1 < n_ && meet[p] >= depth) continue;
      if (group != 0 && p + 1 - start != group) return 0;
      group = p + 1 - start;
      start = p + 1;
    }
    return group;
  }

  void Hierarchical(const std::vector<int>& sizes) {
    if (kind_ == Collective::BROADCAST) {
      HierarchicalBroadcast(sizes);
      return;
    }
    int stride = 1;
    for (int size : sizes) {
      // divisor of the bytes after this level
      const double parts = static_cast<double>(stride) * size;
      switch (kind_) {
        case Collective::ALL_REDUCE:
          RingStep(stride, size, 2, parts);
          break;
        case Collective::ALL_GATHER:  // outermost level first
          RingStep(stride, size, 1, parts / n_);
          break;
        case Collective::REDUCE_SCATTER:
          RingStep(stride, size, 1, parts);
          break;
        default:
          AllPairs(stride, size, size);
      }
      stride *= size;
    }
  }

  // Scatter in the root's groups, broadcast across the outermost groups, all-gather inside.
  void HierarchicalBroadcast(const std::vector<int>& sizes) {
    int stride = 1;
    for (size_t level = 0; level + 1 < sizes.size(); ++level) {
      const int size = sizes[level];
      const double parts = static_cast<double>(stride) * size;
      Binomial(stride, stride, size, [&](int blocks) { Step(1, parts / blocks); });
      RingStep(stride, size, 1, parts);
      stride *= size;
    }
    Binomial(stride, stride, sizes.back(), [&](int) { Step(1, stride); });
  }

  const Topology& topology_;
  const CollectiveModel::Kind kind_;
  const int n_;
  std::vector<int> order_;  // device at each position
  std::vector<std::pair<int, int>> flows_;
  CollectiveSteps found_;
  std::vector<CollectiveStep>* steps_ = nullptr;
};

}  // namespace

std::vector<int> TreeOrder(const Topology& topology, std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end(),
            [&](int a, int b) { return topology.DeviceNode(a) < topology.DeviceNode(b); });
  return ranks;
}

CollectiveSteps FindCollectiveSteps(const Topology& topology, CollectiveModel::Kind kind,
                                    const std::vector<int>& ranks) {
  return StepsFinder(topology, kind, ranks).Find();
}

}  // namespace espalier
