#include "planner/plan/device_mesh.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "planner/lowering/lower_training.h"
#include "planner/pcg/micro_batches.h"
#include "planner/pcg/operator_sequence.h"
#include "planner/plan/megatron_sharding.h"
#include "planner/search/pipeline_partition.h"
#include "planner/search/search.h"

namespace espalier {
namespace {

// Limit on operators x devices x devices of a group search.
constexpr int kMostTensor = 8;
constexpr int64_t kMostShared = 60'000;
constexpr int kMostStages = 64, kMostParts = 64;
// Candidates whose estimated memory exceeds the limit by this factor are skipped.
constexpr double kMemorySlack = 1.25;
constexpr int kMoreWhereNoneFits = 4;
constexpr size_t kAtOnce = 4;  // candidates made in parallel

// The number of shards of a node's parameters: the largest split of any of them.
int Pieces(const PcgStructure& structure, NodeId n, const NodeConfig& config) {
  const SplitRule& rule = structure.nodes[n].rule;
  const Node& node = structure.graph().node(n);
  int pieces = 1;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] == kNoValue ||
        structure.graph().value(node.inputs[i]).kind != ValueKind::kParameter) {
      continue;
    }
    int of_this = 1;
    for (int axis : rule.inputs[i]) {
      if (axis != kNotSplit) of_this *= config.degrees[axis];
    }
    pieces = std::max(pieces, of_this);
  }
  return pieces;
}

// Extends `config` of one replica to all `shape.data` replicas, on devices from `first` on.
NodeConfig Spread(const SplitRule& rule, const NodeConfig& config, int batch_axis, int first,
                  const MeshShape& shape) {
  NodeConfig out = config;
  int replicas = 1;
  if (batch_axis >= 0) {
    const int64_t size = rule.axes[batch_axis].size;
    replicas = shape.data;
    while (size % (static_cast<int64_t>(config.degrees[batch_axis]) * replicas) != 0) --replicas;
    out.degrees[batch_axis] *= replicas;
  }
  const int parts =
      std::accumulate(out.degrees.begin(), out.degrees.end(), 1, std::multiplies<int>());
  out.devices.clear();
  for (int part = 0; part < parts; ++part) {
    // Device index from the shard's position along each axis: replica, and shard within it.
    int rest = part, within = 0, stride = 1, replica = 0;
    for (size_t a = out.degrees.size(); a-- > 0;) {
      int at = rest % out.degrees[a];
      rest /= out.degrees[a];
      if (static_cast<int>(a) == batch_axis) {
        replica = at / config.degrees[a];
        at %= config.degrees[a];
      }
      within += at * stride;
      stride *= config.degrees[a];
    }
    out.devices.push_back(first + replica * shape.tensor + config.devices[within]);
  }
  return out;
}

}  // namespace

std::string ToString(const MeshShape& shape) {
  std::string text = absl::StrCat(shape.stages, shape.stages == 1 ? " stage x " : " stages x ",
                                  shape.data, shape.data == 1 ? " replica x " : " replicas x ",
                                  shape.tensor, shape.tensor == 1 ? " part" : " parts");
  if (shape.sharing == MeshShape::Sharing::kMixed) absl::StrAppend(&text, " (mixed)");
  if (shape.sharing == MeshShape::Sharing::kMegatron) absl::StrAppend(&text, " (alternating)");
  if (shape.micro_batches > 1) absl::StrAppend(&text, ", ", shape.micro_batches, " micro-batches");
  if (shape.zero_stage > 0) absl::StrAppend(&text, ", ZeRO ", shape.zero_stage);
  return text;
}

MeshPlanner::MeshPlanner(const PlanProblem& problem, int num_devices,
                         const v1::MemoryOptions& memory, const SpaceOptions& space, int64_t budget,
                         Share share)
    : problem_(problem),
      num_devices_(num_devices),
      memory_(memory),
      space_(space),
      budget_(budget),
      share_(std::move(share)),
      group_problem_(problem) {
  group_problem_.progress = nullptr;
  for (v1::Device& device : group_problem_.machine.devices) device.set_memory_bytes(0);
}

absl::StatusOr<std::unique_ptr<Planning>> MeshPlanner::PlanningOfGroup(const PlanProblem& problem,
                                                                       int tensor,
                                                                       int parts) const {
  return Planning::Make(problem, tensor, memory_,
                        {.zero_stage = 0, .micro_batches = parts, .only_costs = true});
}

absl::StatusOr<CostTables*> MeshPlanner::Costs() {
  if (all_ == nullptr) {
    absl::StatusOr<std::unique_ptr<Planning>> made =
        Planning::Make(group_problem_, num_devices_, memory_, {});
    if (!made.ok()) return made.status();
    all_ = *std::move(made);
  }
  return &all_->costs();
}

bool MeshPlanner::CanCut(int parts) {
  auto [it, inserted] = can_cut_.try_emplace(parts, true);
  if (inserted) {
    it->second = Planning::Make(group_problem_, 1, memory_, {.micro_batches = parts}).ok();
  }
  return it->second;
}

std::vector<MeshShape::Sharing> MeshPlanner::Sharings(int tensor) const {
  using enum MeshShape::Sharing;
  if (tensor == 1 || share_) return {kTensorParallel};
  if (!space_.parameter_parallel || !space_.attribute_parallel) return {kTensorParallel, kMixed};
  return {kTensorParallel, kMixed, kMegatron};
}

std::vector<MeshShape> MeshPlanner::Shapes(int zero_stage, int micro_batches) {
  std::vector<MeshShape> shapes;
  const int64_t batch = problem_.batch_size;
  const int64_t nodes = static_cast<int64_t>(problem_.graph->nodes().size());
  for (int tensor = 1; tensor <= std::min(num_devices_, kMostParts); tensor *= 2) {
    if (num_devices_ % tensor != 0 ||
        (tensor > kMostTensor && nodes * tensor * tensor > kMostShared)) {
      continue;
    }
    const int groups = num_devices_ / tensor;
    for (int stages = 1; stages <= std::min(kMostStages, groups); ++stages) {
      if (groups % stages != 0) continue;
      const int data = groups / stages;
      if (batch % data != 0) continue;
      std::vector<int> counts;
      const int most = static_cast<int>(std::min<int64_t>(batch / data, 8 * stages));
      for (int count = 1; count <= most; count *= 2) {
        if (stages == 1 || count >= stages || count * 2 > most) counts.push_back(count);
      }
      if (micro_batches > 0) counts = {micro_batches};
      DropTooLongPrograms(static_cast<double>(nodes) * data * tensor, kMaxInstructions, &counts);
      for (int count : counts) {
        if (batch % (static_cast<int64_t>(data) * count) != 0 || !CanCut(count)) continue;
        for (MeshShape::Sharing sharing : Sharings(tensor)) {
          shapes.push_back({stages, data, tensor, count, zero_stage, sharing});
        }
      }
    }
  }
  return shapes;
}

absl::StatusOr<std::vector<NodeConfig>> MeshPlanner::SearchGroup(const PlanProblem& problem,
                                                                 const MeshShape& shape) const {
  const int tensor = shape.tensor;
  // The smallest part of the batch that still has work for every device.
  int parts = 1;
  while (problem_.batch_size % (2 * parts) == 0 && 2 * parts <= num_devices_ / tensor) parts *= 2;
  absl::StatusOr<std::unique_ptr<Planning>> made = PlanningOfGroup(problem, tensor, parts);
  if (!made.ok()) made = PlanningOfGroup(problem, tensor, parts = 1);
  if (!made.ok()) return made.status();
  Planning& planning = **made;
  const PcgStructure& structure = planning.structure();
  std::vector<NodeConfig> configs(structure.nodes.size());
  if (share_ || tensor == 1) {
    for (NodeId n : structure.LiveNodes()) {
      configs[n] =
          tensor == 1 ? OnDevice(structure.nodes[n].rule, 0) : share_(structure, n, tensor);
    }
    return configs;
  }
  if (shape.sharing == MeshShape::Sharing::kMegatron) return MegatronSharding(structure, tensor);
  const bool mixed = shape.sharing == MeshShape::Sharing::kMixed;
  SpaceOptions options = space_;
  options.num_devices = tensor;
  options.sample_parallel = mixed;
  const SearchSpace space(structure, options);
  McmcOptions mcmc;
  mcmc.budget = budget_;
  std::vector<Placement> starts = {planning.ParameterParallelPlacement()};
  if (mixed) {
    starts.push_back(planning.DataParallelPlacement());
  } else {
    // Operators with only a sample axis run whole.
    std::vector<NodeConfig> start(structure.nodes.size());
    for (NodeId n : structure.LiveNodes()) {
      const SplitRule& rule = structure.nodes[n].rule;
      start[n] = starts[0][n]->config;
      for (size_t a = 0; a < rule.axes.size(); ++a) {
        const bool samples = rule.axes[a].kind == AxisKind::kSample;
        if (samples && start[n].degrees[a] > 1) start[n] = OnDevice(rule, 0);
      }
    }
    starts = {planning.FromConfigs(start)};
  }
  Simulator simulator(structure, planning.table(), planning.costs());
  absl::StatusOr<McmcResult> found =
      FindPlacement(space, planning.table(), planning.costs(), std::move(starts), mcmc, &simulator);
  if (!found.ok()) return found.status();
  for (NodeId n : structure.LiveNodes()) configs[n] = found->best[n]->config;
  return configs;
}

void MeshPlanner::Prepare(const std::vector<MeshShape>& shapes) {
  // One shape for each key that `known` lacks.
  const auto missing = [&shapes](const auto& known, auto key_of) {
    std::map<decltype(key_of(shapes[0])), MeshShape> found;
    for (const MeshShape& shape : shapes) {
      if (known.count(key_of(shape)) == 0) found.emplace(key_of(shape), shape);
    }
    return std::vector<std::pair<decltype(key_of(shapes[0])), MeshShape>>(found.begin(),
                                                                          found.end());
  };
  const auto make_all = [this](const auto& wanted, auto* known, auto make) {
    std::vector<decltype(make(group_problem_, wanted[0].second))> made(wanted.size(),
                                                                       absl::UnknownError(""));
    ForEachApart(group_problem_, static_cast<int>(wanted.size()),
                 [&](int i, const OwnProblem& own) { made[i] = make(*own, wanted[i].second); });
    for (size_t i = 0; i < wanted.size(); ++i) known->emplace(wanted[i].first, std::move(made[i]));
  };
  make_all(missing(templates_, TemplateOf), &templates_,
           [this](const PlanProblem& problem, const MeshShape& shape) {
             return SearchGroup(problem, shape);
           });
  make_all(missing(groups_, GroupKeyOf), &groups_,
           [this](const PlanProblem& problem, const MeshShape& shape) {
             return MakeGroup(problem, shape);
           });
}

absl::StatusOr<const std::vector<NodeConfig>*> MeshPlanner::Template(const MeshShape& shape) {
  Prepare({shape});
  const auto& found = templates_.at(TemplateOf(shape));
  if (!found.ok()) return found.status();
  return &*found;
}

absl::StatusOr<const MeshPlanner::Group*> MeshPlanner::GroupOf(const MeshShape& shape) {
  Prepare({shape});
  const auto& found = groups_.at(GroupKeyOf(shape));
  if (!found.ok()) return found.status();
  return &*found;
}

absl::StatusOr<MeshPlanner::Group> MeshPlanner::MakeGroup(const PlanProblem& problem,
                                                          const MeshShape& shape) const {
  const absl::StatusOr<std::vector<NodeConfig>>& configs = templates_.at(TemplateOf(shape));
  if (!configs.ok()) return configs.status();
  absl::StatusOr<std::unique_ptr<Planning>> made =
      PlanningOfGroup(problem, shape.tensor, shape.data * shape.micro_batches);
  if (!made.ok()) return made.status();
  Planning& planning = **made;
  const PcgStructure& structure = planning.structure();
  Group group;
  // The shape is no candidate if its smaller part of the batch does not allow a split.
  for (NodeId n : structure.LiveNodes()) {
    absl::Status status = CheckConfig(structure.nodes[n].rule, (*configs)[n], shape.tensor);
    if (!status.ok()) return status;
  }
  Simulator simulator(structure, planning.table(), planning.costs());
  absl::Status status = simulator.Reset(planning.FromConfigs(*configs));
  if (!status.ok()) return status;
  const std::vector<double> by_node = simulator.SecondsByNode();
  const OperatorSequence sequence(structure);
  for (size_t i = 0; i < sequence.nodes().size(); ++i) {
    const NodeId n = sequence.nodes()[i];
    group.seconds.push_back(by_node[n]);
    group.crossing.push_back(sequence.Crossing(static_cast<int>(i)));
    group.parameter_bytes.push_back(sequence.ParameterBytes(static_cast<int>(i)) /
                                    Pieces(structure, n, (*configs)[n]));
    group.kept_bytes += group.parameter_bytes.back();
  }
  for (const PcgStructure::GradientInfo& g : structure.gradients) {
    group.states =
        std::max<double>(group.states, planning.costs().OptimizerMemoryOf(g.parameter).alike);
  }
  const std::vector<int64_t> peak = simulator.EstimateMemory();
  const double most = static_cast<double>(*std::max_element(peak.begin(), peak.end()));
  group.activation_bytes = std::max(0.0, most - (2 + group.states) * group.kept_bytes);
  return group;
}

absl::StatusOr<std::vector<int>> MeshPlanner::StageOfEach(const MeshShape& shape, double* slowest) {
  absl::StatusOr<const Group*> group = GroupOf(shape);
  if (!group.ok()) return group.status();
  PipelinePartitionProblem partition;
  partition.operators = static_cast<int>((*group)->seconds.size());
  partition.stages = shape.stages;
  partition.devices = shape.stages;
  partition.counts = {1};
  partition.seconds = [&](int op, int, int) { return (*group)->seconds[op]; };
  absl::StatusOr<CostTables*> costs = Costs();
  if (!costs.ok()) return costs.status();
  // Every device of a stage sends its shard to its peer in the next stage.
  std::vector<std::pair<int, int>> ends;
  const int stage_devices = shape.data * shape.tensor;
  for (int d = 0; d < stage_devices && d + stage_devices < num_devices_; ++d) {
    ends.emplace_back(d, d + stage_devices);
  }
  std::map<double, double> seconds;  // by bytes: few distinct values
  partition.transfer = [&](int op) {
    const double bytes = (*group)->crossing[op] / shape.tensor;
    const auto [found, inserted] = seconds.try_emplace(bytes, 0);
    if (inserted) found->second = 2 * (*costs)->Transfers(ends, bytes);
    return found->second;
  };
  const std::vector<PipelineStage> stages = PartitionPipeline(partition);
  if (stages.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no ", shape.stages, " stages of ", partition.operators, " operators"));
  }
  if (slowest != nullptr) *slowest = SlowestPipelineStage(partition, stages);
  std::vector<int> stage_of;
  for (size_t s = 0; s < stages.size(); ++s) stage_of.resize(stages[s].last, static_cast<int>(s));
  return stage_of;
}

absl::StatusOr<MeshEstimate> MeshPlanner::Estimate(const MeshShape& shape) {
  double slowest = 0;
  absl::StatusOr<std::vector<int>> stage_of = StageOfEach(shape, &slowest);
  if (!stage_of.ok()) return stage_of.status();
  absl::StatusOr<const Group*> group = GroupOf(shape);
  if (!group.ok()) return group.status();
  MeshEstimate estimate{.shape = shape};
  estimate.seconds = slowest * (shape.micro_batches + shape.stages - 1);
  std::vector<double> parameters(shape.stages, 0);
  for (size_t i = 0; i < stage_of->size(); ++i) {
    parameters[(*stage_of)[i]] += (*group)->parameter_bytes[i];
  }
  const double most = *std::max_element(parameters.begin(), parameters.end());
  if (shape.data > 1) {
    absl::StatusOr<CostTables*> costs = Costs();
    if (!costs.ok()) return costs.status();
    // Activations of all stages at one time.
    std::vector<std::vector<int>> ranks(shape.stages * shape.tensor);
    std::vector<ContentionModel::Group> groups;
    for (size_t g = 0; g < ranks.size(); ++g) {
      const int stage = static_cast<int>(g) / shape.tensor,
                part = static_cast<int>(g) % shape.tensor;
      for (int r = 0; r < shape.data; ++r) {
        ranks[g].push_back((stage * shape.data + r) * shape.tensor + part);
      }
      groups.push_back({v1::CollectiveInstruction::ALL_REDUCE, &ranks[g], most});
    }
    const std::vector<double> syncs = (*costs)->ConcurrentCollectives(groups);
    const double sync = *std::max_element(syncs.begin(), syncs.end());
    // Half of it is the reduce-scatter, half the all-gather.
    const double halves = shape.zero_stage < 2    ? 2
                          : shape.zero_stage == 2 ? 1 + shape.micro_batches
                                                  : 3 * shape.micro_batches;
    estimate.seconds += sync / 2 * halves;
  }
  const auto shared = [&](int from) { return shape.zero_stage >= from ? 1.0 / shape.data : 1.0; };
  estimate.kept_bytes = most * (shared(3) + (*group)->states * shared(1));
  estimate.bytes =
      estimate.kept_bytes + most * shared(2) +
      (*group)->activation_bytes / shape.stages * std::min(shape.micro_batches, shape.stages);
  return estimate;
}

absl::StatusOr<MeshPlanner::Recipe> MeshPlanner::RecipeOf(const MeshShape& shape) {
  absl::StatusOr<std::vector<int>> stage_of = StageOfEach(shape, nullptr);
  if (!stage_of.ok()) return stage_of.status();
  absl::StatusOr<const std::vector<NodeConfig>*> configs = Template(shape);
  if (!configs.ok()) return configs.status();
  return Recipe{shape, *std::move(stage_of), *configs};
}

absl::StatusOr<MeshPlan> MeshPlanner::Make(const MeshShape& shape) {
  absl::StatusOr<Recipe> recipe = RecipeOf(shape);
  if (!recipe.ok()) return recipe.status();
  return MakeOf(problem_, *recipe);
}

void MeshPlanner::MakeEach(const std::vector<MeshShape>& shapes,
                           const std::function<void(int, absl::StatusOr<MeshPlan>)>& done) {
  Prepare(shapes);
  std::vector<absl::StatusOr<Recipe>> recipes;
  for (const MeshShape& shape : shapes) recipes.push_back(RecipeOf(shape));
  ForEachApart(problem_, static_cast<int>(shapes.size()), [&](int i, const OwnProblem& own) {
    if (!recipes[i].ok()) return done(i, recipes[i].status());
    // Make at least one.
    if (i > 0 && problem_.stop && problem_.stop()) return done(i, absl::CancelledError("stopped"));
    absl::StatusOr<MeshPlan> plan = MakeOf(*own, *recipes[i]);
    if (plan.ok()) plan->planning->Keep(own);
    done(i, std::move(plan));
  });
}

absl::StatusOr<MeshPlan> MeshPlanner::MakeOf(const PlanProblem& problem,
                                             const Recipe& recipe) const {
  const MeshShape& shape = recipe.shape;
  absl::StatusOr<std::unique_ptr<Planning>> made =
      Planning::Make(problem, num_devices_, memory_,
                     {.zero_stage = shape.zero_stage, .micro_batches = shape.micro_batches});
  if (!made.ok()) return made.status();
  MeshPlan plan{.shape = shape, .planning = *std::move(made)};
  const PcgStructure& structure = plan.planning->structure();
  const std::vector<int> batch_axes = BatchAxes(structure);
  const std::vector<NodeId> nodes = structure.LiveNodes();
  std::vector<NodeConfig> spread(structure.nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeId n = nodes[i];
    const int first = recipe.stage_of[i] * shape.data * shape.tensor;
    spread[n] = Spread(structure.nodes[n].rule, (*recipe.configs)[n], batch_axes[n], first, shape);
    absl::Status status = CheckConfig(structure.nodes[n].rule, spread[n], num_devices_);
    if (!status.ok()) return status;
  }
  plan.placement = plan.planning->FromConfigs(spread);
  Simulator simulator(structure, plan.planning->table(), plan.planning->costs());
  if (offload_settings_.has_value()) plan.planning->PriceMemory(plan.placement, &simulator);
  if (absl::Status status = simulator.Reset(plan.placement); !status.ok()) return status;
  plan.cost = simulator.cost();
  plan.fits = simulator.can_fit();
  return plan;
}

absl::StatusOr<MeshPlan> MeshPlanner::Best(const std::vector<MeshShape>& shapes, int exact) {
  double memory = 0;
  for (const v1::Device& device : problem_.machine.devices) {
    const double bytes = static_cast<double>(device.memory_bytes());
    if (bytes > 0 && (memory == 0 || bytes < memory)) memory = bytes;
  }
  Prepare(shapes);
  // Too large by so many bytes, which makes it slower.
  std::vector<std::pair<std::pair<double, double>, MeshShape>> order;
  for (const MeshShape& shape : shapes) {
    absl::StatusOr<MeshEstimate> estimate = Estimate(shape);
    if (!estimate.ok()) continue;
    const auto over = [&](double bytes) {
      return memory == 0 ? 0 : std::max(0.0, bytes - kMemorySlack * memory);
    };
    if (offload_settings_.has_value()) {
      // Swap-out and swap-in time, assuming no overlap.
      const double copies = 2 * over(estimate->bytes) / offload_settings_->host_bandwidth;
      order.push_back({{over(estimate->kept_bytes), estimate->seconds + copies}, shape});
    } else {
      order.push_back({{over(estimate->bytes), estimate->seconds}, shape});
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  absl::StatusOr<MeshPlan> best = absl::NotFoundError(
      absl::StrCat("no mesh of ", num_devices_, " devices can run graph '", problem_.graph->name,
                   "' with a batch of ", problem_.batch_size));
  // Memory estimates are rough: make more if none of the first fits. Always include the shapes with
  // Megatron sharding, whatever their rank.
  int made = 0, by_hand = 0;
  size_t next = 0;     // of order
  size_t best_at = 0;  // in it
  absl::Mutex mutex;   // guards best and the counters
  while (next < order.size() && !(best.ok() && problem_.stop && problem_.stop())) {
    const bool fits = best.ok() && best->fits;
    std::vector<MeshShape> batch;
    std::vector<size_t> at;
    for (; next < order.size() && batch.size() < kAtOnce; ++next) {
      const MeshShape& shape = order[next].second;
      const int coming = made + static_cast<int>(batch.size());
      const bool hand = shape.tensor == 1 || shape.sharing == MeshShape::Sharing::kMegatron;
      const bool enough = coming >= (fits ? exact : kMoreWhereNoneFits * exact);
      if (enough && (!hand || by_hand >= (exact + 1) / 2)) continue;
      by_hand += hand;
      batch.push_back(shape);
      at.push_back(next);
    }
    MakeEach(batch, [&](int i, absl::StatusOr<MeshPlan> plan) {
      if (!plan.ok()) return;
      absl::MutexLock lock(&mutex);
      ++made;
      if (best.ok() && std::pair(best->cost, best_at) < std::pair(plan->cost, at[i])) return;
      best = std::move(plan);
      best_at = at[i];
    });
  }
  return best;
}

}  // namespace espalier
