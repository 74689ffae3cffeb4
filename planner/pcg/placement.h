// Node configurations with the layouts that they imply, and the layouts of a whole placement.
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

// One configuration of one node. Layout ids refer to the ConfigTable's LayoutTable; -1: absent
// operand.
struct ConfigEntry {
  NodeConfig config;
  std::vector<int> inputs;
  std::vector<int> outputs;
};

// Creates and owns the entries. The same configuration of a node always gives the same pointer.
class ConfigTable {
 public:
  explicit ConfigTable(const PcgStructure& structure);

  // REQUIRES: `config` has passed CheckConfig.
  const ConfigEntry* Get(NodeId node, const NodeConfig& config);

  // Returns the resharding plan between two different layouts. Errors are Internal.
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

// Returns the layout that `ref` denotes under `placement`.
int Resolve(const PcgStructure& structure, const Placement& placement, LayoutTable& layouts,
            const LayoutRef& ref);

// Returns whether `ref` asks for sharding among replicas (ZeRO) and its layout allows it.
bool IsSharded(const PcgStructure& structure, const Placement& placement, LayoutTable& layouts,
               const LayoutRef& ref);

// Returns whether each use of `value` gathers its own copy (ZeRO stage 3), which is dropped
// afterwards.
bool GatheredForEachUse(const PcgStructure& structure, const Placement& placement,
                        LayoutTable& layouts, ValueId value);

// Returns InvalidArgument, with both operators' names, if two operators keep a running statistic
// (batch norm's) in different layouts: their copies would be updated a different number of times.
absl::Status CheckRunningStatistics(const PcgStructure& structure, const Placement& placement,
                                    LayoutTable& layouts);

}  // namespace espalier
