#include "planner/search/branches.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "planner/search/elimination.h"

namespace espalier {
namespace {

constexpr int kFewDevices = 8;  // of more, only quarters are tried

// Groups of nodes that lead from one value to one operator and do not meet in between: two or more.
using Region = std::vector<std::vector<NodeId>>;

class Regions {
 public:
  explicit Regions(const PcgStructure& structure)
      : structure_(structure), live_(structure.LiveNodes()) {}

  std::vector<Region> Find() {
    Measure();
    std::vector<Region> regions;
    size_t begin = 0;
    // Values that are still to be read, by where they are read last.
    std::multiset<size_t> open;
    for (size_t i = 0; i < live_.size(); ++i) {
      while (!open.empty() && *open.begin() <= i) open.erase(open.begin());
      // Behind it there is nothing but its own results: it is where branches meet.
      if (open.empty()) {
        Region region = Branches(begin, i);
        if (region.size() > 1) regions.push_back(std::move(region));
        begin = i + 1;
      }
      for (ValueId v : structure_.graph().node(live_[i]).outputs) {
        if (v != kNoValue && last_read_.count(v) > 0) open.insert(last_read_[v]);
      }
    }
    return regions;
  }

 private:
  void Measure() {
    for (size_t i = 0; i < live_.size(); ++i) {
      place_[live_[i]] = i;
      for (ValueId v : structure_.graph().node(live_[i]).inputs) {
        if (v != kNoValue && structure_.graph().value(v).producer != kNoNode) last_read_[v] = i;
      }
    }
  }

  // Of the nodes [begin, end): those that values of their own connect.
  Region Branches(size_t begin, size_t end) const {
    std::vector<size_t> group(end - begin);
    std::iota(group.begin(), group.end(), 0);
    const auto find = [&](size_t i) {
      while (group[i] != i) i = group[i];
      return i;
    };
    for (size_t i = begin; i < end; ++i) {
      for (ValueId v : structure_.graph().node(live_[i]).inputs) {
        if (v == kNoValue) continue;
        const auto producer = place_.find(structure_.graph().value(v).producer);
        if (producer == place_.end() || producer->second < begin) continue;
        const size_t a = find(i - begin), b = find(producer->second - begin);
        group[std::max(a, b)] = std::min(a, b);
      }
    }
    std::map<size_t, std::vector<NodeId>> branches;
    for (size_t i = begin; i < end; ++i) branches[find(i - begin)].push_back(live_[i]);
    Region region;
    for (auto& [first, nodes] : branches) region.push_back(std::move(nodes));
    return region;
  }

  const PcgStructure& structure_;
  const std::vector<NodeId> live_;
  std::map<NodeId, size_t> place_;       // in live_
  std::map<ValueId, size_t> last_read_;  // likewise
};

class Splitter {
 public:
  Splitter(const SearchSpace& space, ConfigTable& table, CostTables& costs, const Placement& other,
           Simulator* simulator)
      : space_(space), table_(table), costs_(costs), other_(other), simulator_(*simulator) {}

  absl::Status Run() {
    const int devices = space_.num_devices();
    if (devices < 2) return absl::OkStatus();
    const std::vector<Region> regions = Regions(space_.structure()).Find();
    for (const Region& region : regions) {
      for (int first = 1; first < devices; ++first) {
        if (devices > kFewDevices && first * 4 % devices != 0) continue;
        for (bool swapped : {false, true}) {
          if (absl::Status s = Try(region, first, swapped); !s.ok()) return s;
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  // As if there were only so many devices.
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

  // Branches on the first devices until they have their share of the work; `swapped`: on the
  // others.
  absl::Status Try(const Region& region, int first, bool swapped) {
    const int devices = space_.num_devices();
    std::vector<std::pair<double, size_t>> order;  // the longest first
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
