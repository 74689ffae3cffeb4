// Configurations with what follows from each of them, and the layouts of a whole placement.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "planner/pcg/layout.h"
#include "planner/pcg/reshard.h"
#include "planner/pcg/structure.h"

namespace espalier {

// One configuration of one node. Layout ids are of the ConfigTable's LayoutTable; -1: absent
// operand.
struct ConfigEntry {
  NodeConfig config;
  std::vector<int> inputs;
  std::vector<int> outputs;
};

// Makes and keeps the entries; the same configuration of a node always gives the same pointer.
class ConfigTable {
 public:
  explicit ConfigTable(const PcgStructure& structure);

  // `config` must have passed CheckConfig.
  const ConfigEntry* Get(NodeId node, const NodeConfig& config);

  // The plan from one layout to another, both by id and different. Errors are Internal.
  absl::StatusOr<const ReshardPlan*> Reshard(int from, int to);

  LayoutTable& layouts() { return layouts_; }

 private:
  const PcgStructure& structure_;
  LayoutTable layouts_;
  std::vector<absl::flat_hash_map<std::string, std::unique_ptr<ConfigEntry>>> entries_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<ReshardPlan>> reshards_;
};

// One entry per forward node; null for dead ones.
using Placement = std::vector<const ConfigEntry*>;

// The layout that `ref` stands for under `placement`.
int Resolve(const PcgStructure& structure, const Placement& placement, LayoutTable& layouts,
            const LayoutRef& ref);

// Whether `ref` is to be cut among its replicas, and can be.
bool IsSharded(const PcgStructure& structure, const Placement& placement, LayoutTable& layouts,
           const LayoutRef& ref);

// Whether what readers need of `value` in other layouts than its own is made anew for each of them.
bool GatheredForEachUse(const PcgStructure& structure, const Placement& placement, LayoutTable& layouts,
                    ValueId value);

// InvalidArgument names both operators where a running statistic that one of them moves (batch
// norm's) lies otherwise for the other: devices would move their copies differently often.
absl::Status CheckRunningStatistics(const PcgStructure& structure, const Placement& placement,
                             LayoutTable& layouts);

}  // namespace espalier
