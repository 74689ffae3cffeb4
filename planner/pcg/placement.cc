#include "planner/pcg/placement.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// The layout of the operand itself, whatever the reference's mode.
int Plain(const Placement& placement, const LayoutRef& ref) {
  const ConfigEntry* entry = placement[ref.node];
  return ref.output ? entry->outputs[ref.index] : entry->inputs[ref.index];
}

}  // namespace

ConfigTable::ConfigTable(const PcgStructure& structure)
    : structure_(structure), entries_(structure.nodes.size()) {}

const ConfigEntry* ConfigTable::Get(NodeId node, const NodeConfig& config) {
  std::string key(reinterpret_cast<const char*>(config.degrees.data()),
                  config.degrees.size() * sizeof(int));
  key.append(reinterpret_cast<const char*>(config.devices.data()),
             config.devices.size() * sizeof(int));
  key.push_back(config.replicated ? 'r' : 'p');
  std::unique_ptr<ConfigEntry>& entry = entries_[node][key];
  if (entry != nullptr) return entry.get();
  entry = std::make_unique<ConfigEntry>();
  entry->config = config;
  const PcgStructure::NodeInfo& info = structure_.nodes[node];
  auto fill = [&](const std::vector<TensorType>& types, const std::vector<std::vector<int>>& map,
                  bool output, std::vector<int>* ids) {
    for (size_t i = 0; i < types.size(); ++i) {
      if (types[i].dtype == DType::kInvalid) {
        ids->push_back(-1);
        continue;
      }
      if (config.replicated) {
        ids->push_back(layouts_.Intern(ReplicatedLayout(types[i].dims, config.devices)));
        continue;
      }
      const std::vector<OperandHalo> halos =
          output ? std::vector<OperandHalo>{} : HalosOf(info.rule, static_cast<int>(i));
      ids->push_back(layouts_.Intern(
          OperandLayout(types[i].dims, map[i], config.degrees, config.devices, output, halos)));
    }
  };
  fill(info.types.inputs, info.rule.inputs, false, &entry->inputs);
  fill(info.types.outputs, info.rule.outputs, true, &entry->outputs);
  return entry.get();
}

absl::StatusOr<const ReshardPlan*> ConfigTable::Reshard(int from, int to) {
  std::unique_ptr<ReshardPlan>& plan =
      reshards_[static_cast<uint64_t>(from) << 32 | static_cast<uint32_t>(to)];
  if (plan == nullptr) {
    absl::StatusOr<ReshardPlan> made = PlanReshard(layouts_.Get(from), layouts_.Get(to));
    if (!made.ok()) return made.status();
    plan = std::make_unique<ReshardPlan>(*std::move(made));
  }
  return plan.get();
}

int Resolve(const PcgStructure& structure, const Placement& placement, LayoutTable& layouts,
            const LayoutRef& ref) {
  if (ref.mode == LayoutRef::kParameterSum) {
    // Sums before the reduction if all contributions have one layout and wait anyway; otherwise
    // after it.
    const PcgStructure::ParameterSum& sum = structure.sums[ref.index];
    const int target = Resolve(structure, placement, layouts, sum.target);
    const int plain = Plain(placement, sum.target);
    if (structure.zero_stage >= 2 && target != plain) return target;
    const int dual = layouts.Dual(plain);
    for (const LayoutRef& contribution : sum.contributions) {
      if (Resolve(structure, placement, layouts, contribution) != dual) return target;
    }
    return dual;
  }
  if (ref.mode == LayoutRef::kGradientShard) {
    const PcgStructure::GradientShard& shard = structure.gradient_shards[ref.index];
    const int target = Resolve(structure, placement, layouts, shard.target);
    if (target != Plain(placement, shard.target)) return target;
    return Resolve(structure, placement, layouts, shard.base);
  }
  const int id = Plain(placement, ref);
  switch (ref.mode) {
    case LayoutRef::kDual:
      return layouts.Dual(id);
    case LayoutRef::kReduced:
      return layouts.Get(id).partials > 1 ? layouts.Dual(id) : id;
    case LayoutRef::kSharded:
      return layouts.Sharded(id);
    default:
      return id;
  }
}

bool IsSharded(const PcgStructure& structure, const Placement& placement, LayoutTable& layouts,
               const LayoutRef& ref) {
  return ref.mode == LayoutRef::kSharded &&
         Resolve(structure, placement, layouts, ref) != Plain(placement, ref);
}

bool GatheredForEachUse(const PcgStructure& structure, const Placement& placement,
                        LayoutTable& layouts, ValueId value) {
  return structure.casts_parameter[value] ||
         (structure.graph().value(value).kind == ValueKind::kParameter &&
          IsSharded(structure, placement, layouts, structure.base[value]));
}

absl::Status CheckRunningStatistics(const PcgStructure& structure, const Placement& placement,
                                    LayoutTable& layouts) {
  const Graph& graph = structure.graph();
  for (ValueId v = 0; v < static_cast<ValueId>(structure.base.size()); ++v) {
    const Value& value = graph.value(v);
    if (value.kind != ValueKind::kParameter || value.trainable) continue;
    const std::vector<int>& slots = structure.slots_of_value[v];
    const bool moved = std::any_of(slots.begin(), slots.end(), [&](int s) {
      const Position& position = structure.positions[structure.slots[s].position];
      return position.role == Position::kForward && graph.node(position.node).op == "batch_norm";
    });
    for (int s : slots) {
      const LayoutRef& required = structure.slots[s].required;
      if (!moved || Resolve(structure, placement, layouts, required) ==
                        Resolve(structure, placement, layouts, structure.base[v])) {
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "operators '", graph.node(structure.base[v].node).name, "' and '",
          graph.node(required.node).name, "' share the running statistic '", value.name,
          "', which moves in each step; split both alike, on the same devices"));
    }
  }
  return absl::OkStatus();
}

}  // namespace espalier
