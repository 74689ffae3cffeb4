// CollectiveModel::Create: the steps of each algorithm, and what the flows of a step get of the
// links.
#include <algorithm>
#include <limits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "planner/machine/collectives.h"

namespace espalier {
namespace {

using Collective = proto::CollectiveInstruction;

bool IsPowerOfTwo(int n) { return (n & (n - 1)) == 0; }

absl::Status CheckRanks(const Topology& topology, CollectiveModel::Kind kind,
                        const std::vector<int>& ranks) {
  if (kind < Collective::ALL_REDUCE || kind > Collective::BROADCAST) {
    return absl::InvalidArgumentError(
        absl::StrCat("collective: kind is ", static_cast<int>(kind),
                     "; accepted: ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST"));
  }
  if (ranks.empty()) {
    return absl::InvalidArgumentError("collective: no ranks; there must be 1 or more");
  }
  std::unordered_set<int> seen;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= topology.num_devices()) {
      return absl::InvalidArgumentError(absl::StrCat("collective: ranks[", i, "] is ", ranks[i],
                                                     "; devices are 0 to ",
                                                     topology.num_devices() - 1));
    }
    if (!seen.insert(ranks[i]).second) {
      return absl::InvalidArgumentError(absl::StrCat("collective: ranks[", i, "] is ", ranks[i],
                                                     ", which is there already; each device may "
                                                     "be there once"));
    }
  }
  return absl::OkStatus();
}

// The first rank, then those of its innermost group, and so on, so that groups stay together.
std::vector<int> OutwardsOrder(const Topology& topology, const std::vector<int>& ranks) {
  const int root = topology.DeviceNode(ranks[0]);
  std::vector<std::pair<int, int>> keyed;  // minus the depth at which it meets the root
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

}  // namespace

std::vector<int> TreeOrder(const Topology& topology, std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end(),
            [&](int a, int b) { return topology.DeviceNode(a) < topology.DeviceNode(b); });
  return ranks;
}

// Writes the phases of a model. Flows go between positions: places of ranks in tree order.
class CollectiveBuilder {
 public:
  CollectiveBuilder(const Topology& topology, CollectiveModel::Kind kind,
                    const std::vector<int>& ranks)
      : topology_(topology),
        kind_(kind),
        n_(static_cast<int>(ranks.size())),
        order_(kind == Collective::BROADCAST ? OutwardsOrder(topology, ranks)
                                             : TreeOrder(topology, ranks)),
        load_(topology.num_edges(), 0) {}

  CollectiveModel Build() {
    model_.num_ranks_ = n_;
    Begin(CollectiveAlgorithm::kRing);
    if (n_ > 1) Ring();
    Begin(CollectiveAlgorithm::kTree);
    if (n_ > 1) Tree();
    if (n_ == 1) return std::move(model_);
    if (IsPowerOfTwo(n_)) {
      Begin(CollectiveAlgorithm::kHalvingDoubling);
      HalvingDoubling();
    }
    if (const std::vector<int> sizes = LevelSizes(); sizes.size() > 1) {
      Begin(CollectiveAlgorithm::kHierarchical);
      Hierarchical(sizes);
    }
    return std::move(model_);
  }

 private:
  using Line = CollectiveModel::Line;

  void Begin(CollectiveAlgorithm algorithm) {
    model_.has_[static_cast<int>(algorithm)] = true;
    phases_ = &model_.phases_[static_cast<int>(algorithm)];
  }

  // Calls visit(edge) on the way from one position to another.
  template <typename Visit>
  void VisitPath(int from, int to, Visit visit) const {
    topology_.VisitPath(order_[from], order_[to], visit);
  }

  void Flow(int from, int to) { flows_.emplace_back(from, to); }

  // Ends a step of the flows so far, which happens `rounds` times with bytes / divisor each.
  void Step(double rounds, double divisor) {
    for (auto [from, to] : flows_) {
      VisitPath(from, to, [&](int edge) { ++load_[edge]; });
    }
    const size_t first = model_.lines_.size();
    for (auto [from, to] : flows_) {
      Line line{topology_.Latency(order_[from], order_[to]),
                std::numeric_limits<double>::infinity()};
      VisitPath(from, to, [&](int edge) {
        line.bandwidth = std::min({line.bandwidth, topology_.EdgeBandwidth(edge) / load_[edge],
                                   topology_.EdgeFlowBandwidth(edge)});
      });
      AddLine(line, first);
    }
    for (auto [from, to] : flows_) {
      VisitPath(from, to, [&](int edge) { load_[edge] = 0; });
    }
    flows_.clear();
    AddPhase(rounds, divisor, first);
  }

  // Keeps those that no other is slower than for all sizes.
  void AddLine(const Line& line, size_t first) {
    std::vector<Line>& lines = model_.lines_;
    auto covers = [](const Line& a, const Line& b) {
      return a.latency >= b.latency && a.bandwidth <= b.bandwidth;
    };
    for (size_t i = first; i < lines.size(); ++i) {
      if (covers(lines[i], line)) return;
    }
    lines.erase(std::remove_if(lines.begin() + static_cast<std::ptrdiff_t>(first), lines.end(),
                               [&](const Line& old) { return covers(line, old); }),
                lines.end());
    lines.push_back(line);
  }

  void AddPhase(double rounds, double divisor, size_t first) {
    phases_->push_back(
        {rounds, divisor, static_cast<int>(first), static_cast<int>(model_.lines_.size())});
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

  // `times` ways around rings of `size` positions, `stride` apart; all n ranks are in one.
  void RingStep(int stride, int size, int times, double divisor) {
    for (int p = 0; p < n_; ++p) {
      const int place = p / stride % size;
      Flow(p, p + (place + 1 < size ? stride : -place * stride));
    }
    Step(static_cast<double>(times) * (size - 1), divisor);
  }

  void Chain() {
    for (int p = 0; p + 1 < n_; ++p) {
      const size_t first = model_.lines_.size();
      Flow(p, p + 1);
      Step(1, 1);
      // The same hop as an earlier one: one phase for both.
      const Line line = model_.lines_.back();
      for (size_t i = 0; i + 1 < phases_->size(); ++i) {
        const Line& old = model_.lines_[(*phases_)[i].first_line];
        if (old.latency != line.latency || old.bandwidth != line.bandwidth) continue;
        (*phases_)[i].rounds += 1;
        phases_->pop_back();
        model_.lines_.resize(first);
        break;
      }
    }
  }

  // All-to-all within each group of `size` positions `stride` apart, all pairs at once: an edge
  // carries a flow for each pair of a group that it parts. Counted by the ranks below each edge; a
  // list of all flows would be n^2. size - 1 rounds of bytes / divisor to one other rank each.
  void AllPairs(int stride, int size, double divisor) {
    std::vector<int> below(topology_.num_nodes(), 0);
    std::vector<int> touched;
    for (int device : order_) {
      for (int v = topology_.DeviceNode(device); v > 0; v = topology_.Parent(v)) {
        if (below[v]++ == 0) touched.push_back(v);
      }
    }
    const double others = size - 1;
    Line line{0, std::numeric_limits<double>::infinity()};
    for (int v : touched) {
      // A node lies inside one block of groups, or has whole blocks below: then it parts no group.
      if (below[v] >= stride * size) continue;
      const double each = below[v] / stride;  // of a group's members, or one more
      const double more = below[v] % stride;  // groups with one more
      const double pairs =
          more * (each + 1) * (size - each - 1) + (stride - more) * each * (size - each);
      if (pairs == 0) continue;
      // Rounds of one rank that pass this edge, one after the other.
      double rounds = 0;
      if (more > 0) rounds = std::max({rounds, each + 1, size - each - 1});
      if (each > 0) rounds = std::max({rounds, each, size - each});
      const int edge = Topology::UpEdge(v);
      line.bandwidth = std::min({line.bandwidth, topology_.EdgeBandwidth(edge) * (others / pairs),
                                 topology_.EdgeFlowBandwidth(edge) * (others / rounds)});
    }
    for (int p = 0; p < n_; ++p) {
      if (p / stride % size == 0) line.latency = std::max(line.latency, Widest(p, stride, size));
    }
    const size_t first = model_.lines_.size();
    model_.lines_.push_back(line);
    AddPhase(others, divisor, first);
  }

  // Largest latency between two of a group. In a tree, whoever is farthest from any point is an
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

  // Binomial steps from the root of each group of `size` positions `stride` apart, for the
  // `holders` first positions; f(d, blocks): a step over distance d whose largest message has this
  // many of the group's blocks when it scatters.
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
    // Links are alike in both directions, so reduce is broadcast backwards, gather is scatter.
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

  // Blocks whose distance has bit d travel d further.
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
        default:  // the all-gather of a broadcast has an nth to start with
          Step(1, 2.0 * d);
      }
    }
  }

  // How many parts each level of the tree has, innermost first; the product is n. Levels that would
  // cut the ranks unequally are left out.
  std::vector<int> LevelSizes() const {
    std::vector<int> meet(n_ - 1);  // depth of the common ancestor of neighbours
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

  // Ranks per group where neighbours that meet above `depth` are parted; 0 if unequal.
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
      const double parts = static_cast<double>(stride) * size;  // of the bytes, after this level
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

  // Scatter in the root's groups, broadcast across the outermost, all-gather inside.
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
  std::vector<int> load_;   // flows by edge; zero between steps
  std::vector<std::pair<int, int>> flows_;
  CollectiveModel model_;
  std::vector<CollectiveModel::Phase>* phases_ = nullptr;
};

absl::StatusOr<CollectiveModel> CollectiveModel::Create(const Topology& topology, Kind kind,
                                                        const std::vector<int>& ranks) {
  if (absl::Status s = CheckRanks(topology, kind, ranks); !s.ok()) return s;
  return CollectiveBuilder(topology, kind, ranks).Build();
}

}  // namespace espalier
