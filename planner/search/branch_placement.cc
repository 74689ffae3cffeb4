#include "planner/search/branch_placement.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "planner/search/elimination.h"

namespace espalier {
namespace {

// On more devices each device count would need tables as large as the whole search's.
constexpr int kMostDevices = 8;

// Groups of nodes that lead to different operands of one operator and to nothing else; at least
// two.
using Region = std::vector<std::vector<NodeId>>;

class Regions {
 public:
  explicit Regions(const PcgStructure& structure)
      : structure_(structure), live_(structure.LiveNodes()), readers_(structure.nodes.size()) {
    for (NodeId n : live_) {
      for (NodeId producer : Producers(n)) readers_[producer].insert(n);
    }
  }

  std::vector<Region> Find() const {
    std::vector<Region> regions;
    for (NodeId join : live_) {
      Region region;
      const std::set<NodeId> producers = Producers(join);
      if (producers.size() < 2) continue;
      for (NodeId end : producers) {
        std::vector<NodeId> branch = Branch(end, join);
        if (!branch.empty()) region.push_back(std::move(branch));
      }
      if (region.size() > 1) regions.push_back(std::move(region));
    }
    return regions;
  }

 private:
  std::set<NodeId> Producers(NodeId n) const {
    std::set<NodeId> producers;
    for (ValueId v : structure_.graph().node(n).inputs) {
      if (v == kNoValue) continue;
      const NodeId producer = structure_.graph().value(v).producer;
      if (producer != kNoNode) producers.insert(producer);
    }
    return producers;
  }

  // Nodes that feed only `end`, which feeds only `join`.
  std::vector<NodeId> Branch(NodeId end, NodeId join) const {
    if (readers_[end] != std::set<NodeId>{join}) return {};
    std::set<NodeId> branch = {end};
    for (auto n = std::lower_bound(live_.begin(), live_.end(), end); n != live_.begin();) {
      const std::set<NodeId>& readers = readers_[*--n];
      if (!readers.empty() &&
          std::includes(branch.begin(), branch.end(), readers.begin(), readers.end())) {
        branch.insert(*n);
      }
    }
    return {branch.begin(), branch.end()};
  }

  const PcgStructure& structure_;
  const std::vector<NodeId> live_;
  std::vector<std::set<NodeId>> readers_;  // by node
};

class Splitter {
 public:
  Splitter(const SearchSpace& space, ConfigTable& table, CostTables& costs, const Placement& other,
           Simulator* simulator)
      : space_(space), table_(table), costs_(costs), other_(other), simulator_(*simulator) {}

  absl::Status Run() {
    const int devices = space_.num_devices();
    if (devices < 2 || devices > kMostDevices) return absl::OkStatus();
    const std::vector<Region> regions = Regions(space_.structure()).Find();
    for (const Region& region : regions) {
      for (int first = 1; first < devices; ++first) {
        for (bool swapped : {false, true}) {
          if (absl::Status s = Try(region, first, swapped); !s.ok()) return s;
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  // The same problem with fewer devices.
  absl::StatusOr<const Placement*> On(int devices) {
    auto it = on_.find(devices);
    if (it == on_.end()) {
      SpaceOptions options = space_.options();
      options.num_devices = devices;
      const SearchSpace fewer(space_.structure(), options);
      Placement whole(other_.size(), nullptr);
      for (NodeId n : space_.structure().LiveNodes()) {
        whole[n] = table_.Get(n, OnDevice(space_.structure().nodes[n].rule, 0));
      }
      absl::StatusOr<Placement> found = EliminationPlacement(fewer, table_, costs_, whole);
      if (!found.ok()) return found.status();
      it = on_.emplace(devices, *std::move(found)).first;
    }
    return &it->second;
  }

  double Seconds(const std::vector<NodeId>& branch) {
    Picoseconds sum = 0;
    for (NodeId n : branch) {
      const NodeTasks* tasks =
          costs_.Node(n, table_.Get(n, OnDevice(space_.structure().nodes[n].rule, 0)));
      for (const TaskList* list : {&tasks->forward, &tasks->backward}) {
        for (const Task& task : *list) sum += task.duration;
      }
    }
    return ToSeconds(sum);
  }

  // Branches go to the first devices until these have their share of the work; `swapped`: to the
  // others.
  absl::Status Try(const Region& region, int first, bool swapped) {
    const int devices = space_.num_devices();
    std::vector<std::pair<double, size_t>> order;  // longest first
    double all = 0;
    for (size_t b = 0; b < region.size(); ++b) {
      order.emplace_back(-Seconds(region[b]), b);
      all -= order.back().first;
    }
    std::sort(order.begin(), order.end());
    const int share = swapped ? devices - first : first;
    double taken = 0;
    std::vector<Simulator::Change> changes;
    for (const auto& [seconds, b] : order) {
      const bool in_share = taken == 0 || taken - seconds <= all * share / devices;
      if (in_share) taken -= seconds;
      const bool on_first = in_share != swapped;
      absl::StatusOr<const Placement*> placement = On(on_first ? first : devices - first);
      if (!placement.ok()) return placement.status();
      for (NodeId n : region[b]) {
        NodeConfig config = (**placement)[n]->config;
        for (int& device : config.devices) device += on_first ? 0 : first;
        const ConfigEntry* entry = table_.Get(n, config);
        if (entry != simulator_.placement()[n]) changes.emplace_back(n, entry);
      }
    }
    if (changes.empty()) return absl::OkStatus();
    const Picoseconds now = simulator_.cost();
    absl::StatusOr<Picoseconds> cost = simulator_.Propose(changes, now);
    if (!cost.ok()) return cost.status();
    if (*cost < now) {
      simulator_.Accept();
    } else {
      simulator_.Reject();
    }
    return absl::OkStatus();
  }

  const SearchSpace& space_;
  ConfigTable& table_;
  CostTables& costs_;
  const Placement& other_;
  Simulator& simulator_;
  std::map<int, Placement> on_;  // by number of devices
};

}  // namespace

absl::Status SplitBranches(const SearchSpace& space, ConfigTable& table, CostTables& costs,
                           const Placement& other, Simulator* simulator) {
  return Splitter(space, table, costs, other, simulator).Run();
}

}  // namespace espalier
