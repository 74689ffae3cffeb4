#include "planner/plan/planning.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/optimizer/optimizer.h"
#include "planner/lowering/lower_training.h"
#include "planner/lowering/offload_recompute_pass.h"
#include "planner/machine/topology.h"
#include "planner/pcg/micro_batches.h"
#include "planner/pcg/parallel_op.h"
#include "planner/proto/plan_proto.h"

namespace espalier {
namespace {

// Above this number of instructions over all devices, programs are not written just to measure
// memory; the simulator's estimate is used.
constexpr double kMostLowered = 1e6;

}  // namespace

void DropTooLongPrograms(double parts, double most, std::vector<int>* micro_batches) {
  if (micro_batches->empty()) return;
  micro_batches->erase(std::remove_if(micro_batches->begin() + 1, micro_batches->end(),
                                      [&](int m) { return EstimateInstructions(parts, m) > most; }),
                       micro_batches->end());
}

std::string DeviceClassOf(v1::Device device) {
  device.clear_host();
  return device.SerializeAsString();
}

bool AllDevicesEqual(const Machine& machine) {
  const std::string first = DeviceClassOf(machine.devices[0]);
  return std::all_of(machine.devices.begin(), machine.devices.end(),
                     [&](const v1::Device& d) { return DeviceClassOf(d) == first; });
}

absl::StatusOr<std::unique_ptr<Planning>> Planning::Make(const PlanProblem& problem,
                                                         int num_devices,
                                                         const v1::MemoryOptions& memory,
                                                         const StepConfig& shape) {
  if (absl::StatusOr<OffloadSettings> s = OffloadSettingsOf(memory); !s.ok()) return s.status();
  absl::Status tiles = CheckBatchTiles(shape.batch_tiles, "plan: field 'batch_tiles'");
  if (!tiles.ok()) return tiles;
  std::unique_ptr<Planning> planning(new Planning(problem));
  planning->machine_ = problem.machine;
  if (num_devices > static_cast<int>(problem.machine.devices.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a plan for ", num_devices, " devices; there are ", problem.machine.devices.size()));
  }
  planning->machine_.devices.resize(num_devices);
  const Topology* topology = problem.machine.topology.get();
  if (topology != nullptr && topology->num_devices() < num_devices) {
    return absl::InvalidArgumentError(absl::StrCat("a plan for ", num_devices,
                                                   " devices on a machine whose topology has ",
                                                   topology->num_devices()));
  }
  planning->optimizer_ = problem.optimizer;
  planning->memory_ = memory;
  planning->batch_tiles_ = std::max(1, shape.batch_tiles);
  if (planning->optimizer_.name().empty()) {
    planning->optimizer_.set_name("sgd");  // only planned, never run
  }
  absl::Status optimizer = CheckOptimizer(*problem.registry, planning->optimizer_);
  if (!optimizer.ok()) return optimizer;
  absl::StatusOr<PcgStructure> structure =
      BuildStructure(*problem.registry, *problem.graph, /*forward_only=*/false, shape.zero_stage);
  if (!structure.ok()) return structure.status();
  absl::Status cut = shape.only_costs ? SplitBatchForCosts(shape.micro_batches, &*structure)
                                      : SplitIntoMicroBatches(shape.micro_batches, &*structure);
  if (!cut.ok()) return cut;
  planning->structure_ = *std::move(structure);
  planning->table_ = std::make_unique<ConfigTable>(planning->structure_);
  planning->LimitMemory(1.0);
  return planning;
}

void Planning::LimitMemory(double fraction) {
  Machine limited = machine_;
  for (v1::Device& device : limited.devices) {
    device.set_memory_bytes(
        static_cast<int64_t>(static_cast<double>(device.memory_bytes()) * fraction));
  }
  CostModel& cost = problem_.cost == nullptr ? analytic_ : *problem_.cost;
  costs_ = std::make_unique<CostTables>(structure_, *table_, limited, cost, optimizer_);
}

Placement Planning::FromConfigs(const std::vector<NodeConfig>& configs) {
  Placement placement(structure_.nodes.size(), nullptr);
  for (NodeId n : structure_.LiveNodes()) placement[n] = table_->Get(n, configs[n]);
  return placement;
}

Placement Planning::AllOn(int device) {
  std::vector<NodeConfig> configs(structure_.nodes.size());
  for (NodeId n : structure_.LiveNodes()) {
    configs[n] = OnDevice(structure_.nodes[n].rule, device);
  }
  return FromConfigs(configs);
}

Placement Planning::DataParallelPlacement() {
  std::vector<NodeConfig> configs(structure_.nodes.size());
  for (NodeId n : structure_.LiveNodes()) {
    configs[n] = DataParallel(structure_.nodes[n].rule, num_devices());
  }
  return FromConfigs(configs);
}

Placement Planning::ParameterParallelPlacement() {
  std::vector<NodeConfig> configs(structure_.nodes.size());
  for (NodeId n : structure_.LiveNodes()) {
    const SplitRule& rule = structure_.nodes[n].rule;
    configs[n] = DataParallel(rule, num_devices());
    for (AxisKind wanted : {AxisKind::kParameter, AxisKind::kReduction}) {
      const auto axis = std::find_if(rule.axes.begin(), rule.axes.end(), [&](const Axis& a) {
        return a.kind == wanted && LegalDegrees(a, num_devices()).back() == num_devices();
      });
      if (axis == rule.axes.end()) continue;
      configs[n].degrees.assign(rule.axes.size(), 1);
      configs[n].degrees[axis - rule.axes.begin()] = num_devices();
      configs[n].devices.clear();
      for (int d = 0; d < num_devices(); ++d) configs[n].devices.push_back(d);
      break;
    }
  }
  return FromConfigs(configs);
}

double Planning::Instructions(const Placement& placement) const {
  return EstimateInstructions(structure_, placement);
}

bool Planning::PriceMemory(const Placement& placement, Simulator* simulator) const {
  const absl::StatusOr<OffloadSettings> settings =
      OffloadSettingsOf(memory_);  // Make has checked them
  if (!settings.ok() || !(settings->swap || settings->recompute) ||
      Instructions(placement) > kMostLowered) {
    return false;
  }
  simulator->EnableOffloadPenalty(*settings);
  return true;
}

absl::StatusOr<Candidate> Planning::Evaluate(const std::string& name, const Placement& placement) {
  Candidate candidate;
  candidate.name = name;
  candidate.placement = placement;
  Simulator simulator(structure_, *table_, *costs_);
  if (absl::Status status = simulator.Reset(placement); !status.ok()) return status;
  candidate.prediction = simulator.Predict();
  if (absl::Status s = CheckRunningStatistics(structure_, placement, table_->layouts()); !s.ok()) {
    candidate.refused = std::string(s.message());
    return candidate;
  }
  if (Instructions(placement) > kMostLowered) {
    for (int d = 0; d < num_devices(); ++d) {
      const int64_t memory = machine_.devices[d].memory_bytes();
      if (memory <= 0 || candidate.prediction.peak_bytes(d) <= memory) continue;
      candidate.lacks_memory = true;
      candidate.refused =
          absl::StrCat("device ", d, " needs about ", candidate.prediction.peak_bytes(d),
                       " bytes but has ", memory);
      break;
    }
    return candidate;
  }

  LoweringOptions options;
  options.optimizer = optimizer_;
  options.workspace = problem_.workspace;
  MemoryLimits limits;
  limits.options = memory_;
  for (const v1::Device& device : machine_.devices) limits.AddDevice(device);
  for (NodeId n : structure_.LiveNodes()) {
    limits.node_seconds[structure_.graph().node(n).name] = SecondsOf(n, placement[n]);
  }
  std::vector<int64_t> kept;
  MemoryFit made;
  absl::StatusOr<std::vector<v1::Program>> programs = LowerPlacement(
      structure_, placement, *table_, num_devices(), options, &kept, &limits, &made, batch_tiles_);
  if (absl::IsResourceExhausted(programs.status())) {
    for (int d = 0; d < num_devices(); ++d) {
      if (made.bytes_without[d] > 0) candidate.prediction.set_peak_bytes(d, made.bytes_without[d]);
    }
    candidate.lacks_memory = true;
    candidate.refused = std::string(programs.status().message());
    return candidate;
  }
  if (!programs.ok()) return programs.status();
  bool changed = made.batch_tiles > 1;
  double added = 0;
  for (const v1::Program& program : *programs) {
    const int d = program.rank();
    const int64_t needed = program.arena_bytes() + made.workspace[d];
    candidate.prediction.set_peak_bytes(d, needed);
    changed = changed || !made.memory[d].evictions().empty();
    added = std::max(added, made.memory[d].added_seconds());
    const int64_t memory = limits.bytes[d];
    if (memory <= 0 || needed <= memory) continue;
    candidate.lacks_memory = true;
    absl::StrAppend(&candidate.refused, candidate.refused.empty() ? "" : "; ", "device ", d,
                    " needs ", needed, " bytes but has ", memory);
  }
  if (!changed) return candidate;
  candidate.batch_tiles = made.batch_tiles;
  candidate.memory = std::move(made.memory);
  candidate.prediction.set_step_seconds(candidate.prediction.step_seconds() + added);
  return candidate;
}

double Planning::SecondsOf(NodeId node, const ConfigEntry* entry) {
  const NodeTasks* tasks = costs_->Node(node, entry);
  Picoseconds slowest = 0;
  for (size_t part = 0; part < tasks->forward.size(); ++part) {
    slowest = std::max(slowest, tasks->forward[part].duration + tasks->backward[part].duration);
  }
  return ToSeconds(slowest);
}

absl::StatusOr<double> Planning::BytesMoved(ValueId value, int from, int to) {
  LayoutTable& layouts = table_->layouts();
  absl::StatusOr<const ReshardPlan*> reshard = table_->Reshard(from, to);
  if (!reshard.ok()) return reshard.status();
  return static_cast<double>(ElementsMoved(**reshard, layouts.Get(from), layouts.Get(to))) *
         static_cast<double>(SizeOf(structure_.graph().value(value).type.dtype));
}

void Planning::AddOperatorsBetween(int from, int to, const std::string& tensor,
                                   const std::string& consumer, double bytes, v1::Plan* plan) {
  LayoutTable& layouts = table_->layouts();
  for (const ParallelOp& op : ParallelOpsBetween(layouts.Get(from), layouts.Get(to))) {
    v1::ParallelOperator* out = plan->add_parallel_operators();
    out->set_kind(op.kind);
    out->set_tensor(tensor);
    out->set_consumer(consumer);
    out->set_dimension(op.dimension);
    out->set_degree(op.degree);
    out->set_bytes(bytes);
    bytes = 0;
  }
}

absl::Status Planning::AddUpdateOperators(const Placement& placement,
                                          const PcgStructure::GradientInfo& gradient,
                                          v1::Plan* plan) {
  LayoutTable& layouts = table_->layouts();
  auto resolve = [&](const LayoutRef& ref) { return Resolve(structure_, placement, layouts, ref); };
  const std::string& parameter = structure_.graph().value(gradient.parameter).name;
  const LayoutRef& required = structure_.slots[gradient.slot].required;
  const int from = resolve(structure_.base[gradient.gradient]), to = resolve(required);
  const bool cut = IsSharded(structure_, placement, layouts, required);
  if (from != to) {
    absl::StatusOr<double> bytes = BytesMoved(gradient.gradient, from, to);
    if (!bytes.ok()) return bytes.status();
    const std::string tensor = absl::StrCat(parameter, ".grad");
    if (cut) {
      AddOperatorsBetween(from, to, tensor, "update", *bytes, plan);
    } else {
      // The dual of reading the stored parameter on several devices: reduced, and kept by all of
      // them.
      v1::ParallelOperator* out = plan->add_parallel_operators();
      out->set_kind(v1::ParallelOperator::REDUCE);
      out->set_tensor(tensor);
      out->set_consumer("update");
      out->set_dimension(-1);
      out->set_degree(layouts.Get(from).partials);
      out->set_bytes(*bytes);
    }
  }
  const int storage = resolve(structure_.base[gradient.parameter]);
  if (!cut || storage == to) return absl::OkStatus();
  absl::StatusOr<double> gathered = BytesMoved(gradient.parameter, to, storage);
  if (!gathered.ok()) return gathered.status();
  AddOperatorsBetween(to, storage, parameter, "update", *gathered, plan);
  return absl::OkStatus();
}

absl::Status Planning::AddParallelOperators(const Placement& placement, v1::Plan* plan) {
  const Graph& graph = structure_.graph();
  LayoutTable& layouts = table_->layouts();
  auto resolve = [&](const LayoutRef& ref) { return Resolve(structure_, placement, layouts, ref); };
  // Gradient contributions by forward operand.
  std::map<std::pair<NodeId, int>, ValueId> contribution;
  for (size_t v = 0; v < structure_.base.size(); ++v) {
    const LayoutRef& ref = structure_.base[v];
    if (ref.present() && ref.mode == LayoutRef::kDual && !ref.output) {
      contribution.try_emplace({ref.node, ref.index}, static_cast<ValueId>(v));
    }
  }
  for (const PcgStructure::GradientInfo& g : structure_.gradients) {
    const LayoutRef& ref = structure_.base[g.gradient];
    contribution.erase({ref.node, ref.index});  // of the update
  }
  // Bytes moved to the readers of `v` in the backward pass: once per layout if the converted tensor
  // is kept, otherwise once per reader.
  auto backward_bytes = [&](ValueId v, bool stays, NodeId reader) -> absl::StatusOr<double> {
    const int from = resolve(structure_.base[v]);
    std::set<int> seen = {from};
    double total = 0;
    for (int use : structure_.slots_of_value[v]) {
      const Slot& slot = structure_.slots[use];
      if (!stays) {
        const Position& position = structure_.positions[slot.position];
        if (position.role != Position::kBackward || position.config_node != reader) continue;
      }
      const int to = resolve(slot.required);
      if (!seen.insert(to).second) continue;
      absl::StatusOr<double> bytes = BytesMoved(v, from, to);
      if (!bytes.ok()) return bytes.status();
      total += *bytes;
    }
    return total;
  };

  for (const Position& position : structure_.positions) {
    if (position.role != Position::kForward) continue;
    for (int s = position.first_slot; s < position.last_slot; ++s) {
      const Slot& slot = structure_.slots[s];
      if (slot.value == kNoValue || !structure_.base[slot.value].present()) continue;
      const int from = resolve(structure_.base[slot.value]), to = resolve(slot.required);
      if (from == to) continue;
      absl::StatusOr<double> bytes = BytesMoved(slot.value, from, to);
      if (!bytes.ok()) return bytes.status();
      double total = *bytes;
      if (GatheredForEachUse(structure_, placement, layouts, slot.value)) {
        bytes = backward_bytes(slot.value, /*stays=*/false, position.node);
        if (!bytes.ok()) return bytes.status();
        total += *bytes;
      }
      const auto gradient = contribution.find({position.node, slot.required.index});
      if (gradient != contribution.end()) {
        bytes = backward_bytes(gradient->second, /*stays=*/true, kNoNode);
        if (!bytes.ok()) return bytes.status();
        total += *bytes;
      }
      AddOperatorsBetween(from, to, graph.value(slot.value).name, graph.node(position.node).name,
                          total, plan);
    }
  }
  for (const PcgStructure::GradientInfo& g : structure_.gradients) {
    absl::Status status = AddUpdateOperators(placement, g, plan);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Plan> Planning::ToPlan(const Candidate& candidate) {
  v1::Plan plan;
  plan.set_format_version(1);
  plan.set_graph_fingerprint(GraphFingerprint(*problem_.graph));
  plan.set_batch_size(problem_.batch_size);
  for (const v1::Device& device : machine_.devices) *plan.add_devices() = device;
  std::vector<NodeConfig> configs(structure_.nodes.size());
  for (NodeId n : structure_.LiveNodes()) configs[n] = candidate.placement[n]->config;
  ConfigsToPlan(structure_, configs, &plan);
  const std::vector<NodeId> live = structure_.LiveNodes();
  for (size_t i = 0; i < live.size(); ++i) {
    plan.mutable_operators(static_cast<int>(i))
        ->set_predicted_seconds(structure_.micro_batches *
                                SecondsOf(live[i], candidate.placement[live[i]]));
  }
  plan.set_machine(machine_.name);
  if (structure_.micro_batches > 1) plan.set_micro_batches(structure_.micro_batches);
  plan.set_zero_stage(structure_.zero_stage);
  *plan.mutable_memory() = memory_;
  for (const v1::MemoryPlan& memory : candidate.memory) *plan.add_memory_plans() = memory;
  if (candidate.batch_tiles > 1) plan.set_batch_tiles(candidate.batch_tiles);
  *plan.mutable_prediction() = candidate.prediction;
  if (absl::Status status = AddParallelOperators(candidate.placement, &plan); !status.ok()) {
    return status;
  }
  return plan;
}

}  // namespace espalier
