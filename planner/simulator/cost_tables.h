// Task lists of all parts of a step, built once and cached: operators by configuration, resharding
// by pair of layouts, updates by layout.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "ops/optimizer/optimizer.h"
#include "planner/machine/communication.h"
#include "planner/machine/contention.h"
#include "planner/pcg/placement.h"
#include "planner/planner.h"
#include "planner/simulator/cpu_contention.h"
#include "planner/simulator/task.h"

namespace espalier {

struct NodeTasks {
  TaskList forward;
  TaskList backward;
};

struct ReshardTasks {
  TaskList tasks;
  bool all_reduce_only = false;
  // If all_reduce_only: (group of ranks and element size, bytes) of each collective.
  std::vector<std::pair<int, int64_t>> reductions;
  bool aliases = false;  // some target shard aliases a source shard
  // By device: memory of target shards that are no aliases, and of staging buffers.
  std::vector<int64_t> new_bytes;
  std::vector<int64_t> staging_bytes;
};

struct UpdateTasks {
  TaskList squares;  // gradient norms of the shards that count
  TaskList update;
  // all-gather of shards that were updated in place, after all updates
  TaskList gather;
  std::vector<int64_t> staging_bytes;  // by device: of shards that are updated in a copy
};

class CostTables {
 public:
  // All arguments must outlive this. REQUIRES: `optimizer` has passed CheckOptimizer.
  CostTables(const PcgStructure& structure, ConfigTable& table, const Machine& machine,
             CostModel& cost, const v1::Optimizer& optimizer);

  const NodeTasks* Node(NodeId node, const ConfigEntry* entry);
  absl::StatusOr<const ReshardTasks*> Reshard(int from, int to, int element_bytes);
  // Tasks that sum `count` gradients in one layout; count 0: the seed gradient.
  const TaskList* Sum(int layout, int element_bytes, int count);
  // `layout`: of the update; `storage`: of the stored parameter; `owner`: the replica whose part
  // counts towards the gradient norm (see NormReplica).
  absl::StatusOr<const UpdateTasks*> Update(int layout, int storage, int element_bytes, int owner);
  // Bytes of the shards of `layout` by device, each aligned as in an arena.
  const std::vector<int64_t>& BytesByDevice(int layout, int element_bytes);

  const std::vector<int>& Group(int id) const { return group_ranks_[id]; }
  int num_devices() const { return static_cast<int>(devices_.size()); }
  // Seconds of a collective alone, with `bytes` of input per rank.
  double Collective(v1::CollectiveInstruction::Kind kind, const std::vector<int>& ranks,
                    double bytes);
  // Seconds of collectives of disjoint devices that run concurrently and so share a topology's
  // links. Measured times are used as measured.
  std::vector<double> ConcurrentCollectives(const std::vector<ContentionModel::Group>& groups);
  // Seconds of collectives that devices run in this order; those of one round (RoundScheduler) run
  // concurrently.
  std::vector<double> CollectivesInOrder(const std::vector<ContentionModel::Group>& groups);
  // Seconds until a message has arrived at a waiting receiver.
  double Transfer(int from, int to, double bytes) const;
  // Seconds until the last of several messages has arrived; all have `bytes` and start together.
  double Transfers(const std::vector<std::pair<int, int>>& ends, double bytes) const;
  const CpuContention& cpu_contention() const { return cpu_contention_; }
  const Topology* topology() const { return topology_.get(); }
  double LinkBandwidth() const { return link_.bandwidth(); }
  const v1::Device& device(int i) const { return devices_[i]; }
  const v1::Optimizer& optimizer() const { return optimizer_; }
  // Optimizer state of a parameter: the number of tensors shaped like each of its shards, and
  // further bytes per shard, aligned as in an arena.
  struct OptimizerMemory {
    int alike = 0;
    int64_t bytes = 0;
  };
  const OptimizerMemory& OptimizerMemoryOf(ValueId parameter) const { return kept_[parameter]; }

 private:
  ReshardTasks MakeReshard(const ReshardPlan& plan, const Layout& from, const Layout& to,
                           int element_bytes);
  Task MemoryTask(int device, double bytes) const;
  // How many times an update passes over the parameter's bytes: it reads and writes the parameter
  // and the states and reads the gradient.
  double Passes(const Dims& parameter) const;
  // Ratio of the measured time of an update on the device to the time of its bytes at the device's
  // rate, which is that of writing fresh memory (processors read it first). 1 if not measured.
  double UpdateFactor(const v1::Device& device);
  Task MessageTask(int from, int to, double bytes) const;
  // Replaces the durations of the list's messages by those under link contention.
  void ShareLinks(TaskList* tasks) const;

  const PcgStructure& structure_;
  ConfigTable& table_;
  CostModel& cost_;
  v1::Optimizer optimizer_;
  UpdateChoice update_;
  std::vector<OptimizerMemory> kept_;   // by value
  std::vector<v1::Device> devices_;     // with defaults
  std::vector<double> update_factors_;  // by device
  v1::Link link_;
  std::shared_ptr<const Topology> topology_;                 // replaces link_
  std::optional<ContentionModel> contention_;                // on topology_
  std::shared_ptr<const CommunicationModel> communication_;  // measured; takes precedence
  CpuContention cpu_contention_;

  absl::flat_hash_map<const ConfigEntry*, std::unique_ptr<NodeTasks>> nodes_;
  // By node and degrees: times on each device, negative if not yet known.
  std::map<std::pair<NodeId, std::vector<int>>, std::vector<CostModel::Times>> times_;
  absl::flat_hash_map<std::tuple<int, int, int>, std::unique_ptr<ReshardTasks>> reshards_;
  absl::flat_hash_map<std::tuple<int, int, int>, std::unique_ptr<TaskList>> sums_;
  absl::flat_hash_map<std::tuple<int, int, int, int>, std::unique_ptr<UpdateTasks>> updates_;
  absl::flat_hash_map<std::pair<int, int>, std::unique_ptr<std::vector<int64_t>>> bytes_;
  std::map<std::pair<std::vector<int>, int>, int> groups_;
  std::vector<std::vector<int>> group_ranks_;
};

}  // namespace espalier
