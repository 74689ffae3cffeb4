// Emitter: gradient synchronization, clipping and updates, after the backward pass.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "planner/lowering/emitter.h"
#include "planner/pcg/gradient_buckets.h"

namespace espalier {
namespace {

const TensorSpec kScalar = TensorSpec::Whole({DType::kF32, {}});

}  // namespace

absl::Status Emitter::SyncGradients() {
  const Graph& graph = structure_.graph();
  std::map<ValueId, const PcgStructure::GradientInfo*> info;
  for (const PcgStructure::GradientInfo& g : structure_.gradients) info[g.gradient] = &g;
  auto plan_node = [&](ValueId gradient) -> const std::string& {
    return graph.node(structure_.base[info[gradient]->parameter].node).name;
  };

  for (const BucketBuffers& bucket : buckets_) {
    const uint64_t tag = next_tag_++;
    for (size_t r = 0; r < bucket.ranks.size(); ++r) {
      RankProgram& rank = ranks_[bucket.ranks[r]];
      int buffer = bucket.buffers[r];
      for (const auto& [gradient, index] : bucket.members) {
        const int base = Resolved(structure_.base[gradient]);
        const int target = UpdateLayoutOf(*info[gradient]);
        const ReshardCollective& c = (*table_.Reshard(base, target))->collectives[index];
        const int own = instances_.at({gradient, base})[c.sources[r]];
        Instance& reduced = instances_[{gradient, target}];
        reduced.resize(LayoutOf(target).shards.size(), -1);
        reduced[c.targets[r]] = own;
        if (buffer < 0) buffer = own;
      }
      v1::CollectiveInstruction* collective =
          rank.Emit(plan_node(bucket.members[0].first))->mutable_collective();
      collective->set_kind(v1::CollectiveInstruction::ALL_REDUCE);
      collective->set_group(rank.Group(bucket.ranks));
      collective->set_input(buffer);
      collective->set_output(buffer);
      collective->set_tag(tag);
    }
  }
  for (const PcgStructure::GradientInfo& g : structure_.gradients) {
    const int target = UpdateLayoutOf(g);
    absl::StatusOr<const Instance*> ready = Ensure(g.gradient, target, plan_node(g.gradient));
    if (!ready.ok()) return ready.status();
  }
  return absl::OkStatus();
}

int Emitter::LossScaleState(int device) {
  auto [it, inserted] = loss_scale_states_.try_emplace(device, -1);
  if (inserted) {
    it->second = ranks_[device].AddBuffer(
        "espalier.loss_scale", TensorSpec::Whole({DType::kF32, {3}}), v1::OPTIMIZER_STATE);
  }
  return it->second;
}

void Emitter::EmitLossScale(int device, int output) {
  v1::ComputeInstruction* compute = ranks_[device].Emit("loss_scale")->mutable_compute();
  compute->set_op("loss_scale");
  (*compute->mutable_attributes())["initial"].set_f(options_.optimizer.loss_scale().initial());
  compute->add_inputs(LossScaleState(device));
  compute->add_outputs(output);
}

int Emitter::LossScale(int device) {
  auto [it, inserted] = loss_scales_.try_emplace(device, -1);
  if (inserted) {
    it->second = ranks_[device].AddBuffer("loss_scale", kScalar, v1::SCRATCH);
    EmitLossScale(device, it->second);
  }
  return it->second;
}

std::map<int, int> Emitter::EmitSquares() {
  const std::string node = "gradient_norm";
  std::map<int, std::vector<int>> squares;  // by rank
  for (const auto& [device, state] : loss_scale_states_) squares[device];
  for (size_t number = 0; number < structure_.gradients.size(); ++number) {
    const PcgStructure::GradientInfo& g = structure_.gradients[number];
    const int target = UpdateLayoutOf(g);
    const int owner = NormReplica(static_cast<int>(number), LayoutOf(target));
    const Instance& gradient = instances_.at({g.gradient, target});
    for (size_t i = 0; i < gradient.size(); ++i) {
      const Shard& shard = LayoutOf(target).shards[i];
      std::vector<int>& sums = squares[shard.device];
      if (shard.replica != owner) continue;  // each element counts once
      RankProgram& rank = ranks_[shard.device];
      const int sum =
          rank.AddBuffer(absl::StrCat(NameOf(g.gradient), ".squares"), kScalar, v1::SCRATCH);
      v1::ComputeInstruction* compute = rank.Emit(node)->mutable_compute();
      compute->set_op("sum_squares");
      compute->add_inputs(gradient[i]);
      compute->add_outputs(sum);
      sums.push_back(sum);
    }
  }

  std::vector<int> group;
  for (const auto& [device, sums] : squares) group.push_back(device);
  const uint64_t tag = next_tag_++;
  std::map<int, int> totals;
  for (const auto& [device, sums] : squares) {
    RankProgram& rank = ranks_[device];
    const int total = rank.AddBuffer("gradient_norm.squares", kScalar, v1::SCRATCH);
    if (sums.empty()) {
      rank.Emit(node)->mutable_fill()->set_buffer(total);
    } else {
      v1::ComputeInstruction* add = rank.Emit(node)->mutable_compute();
      add->set_op("add_n");
      for (int sum : sums) add->add_inputs(sum);
      add->add_outputs(total);
    }
    if (group.size() > 1) {
      v1::CollectiveInstruction* reduce = rank.Emit(node)->mutable_collective();
      reduce->set_kind(v1::CollectiveInstruction::ALL_REDUCE);
      reduce->set_group(rank.Group(group));
      reduce->set_input(total);
      reduce->set_output(total);
      reduce->set_tag(tag);
    }
    totals[device] = total;
  }
  return totals;
}

void Emitter::AddSchedules() {
  for (const PcgStructure::GradientInfo& g : structure_.gradients) {
    for (const Shard& shard : LayoutOf(Resolved(structure_.base[g.parameter])).shards) {
      Factors& factors = factors_[shard.device];
      if (factors.hyper >= 0) continue;
      factors.hyper = ranks_[shard.device].AddBuffer(
          "schedule", TensorSpec::Whole({DType::kF32, {2}}), v1::SCHEDULE);
      if (scales_loss()) LossScaleState(shard.device);
    }
  }
}

void Emitter::EmitFactors() {
  const double max_norm = options_.optimizer.clip_norm();
  if (max_norm == 0 && !scales_loss()) return;
  const std::map<int, int> totals = EmitSquares();
  for (const auto& [device, total] : totals) {
    RankProgram& rank = ranks_[device];
    Factors& factors = factors_[device];
    v1::ComputeInstruction* compute = rank.Emit("gradient_norm")->mutable_compute();
    (*compute->mutable_attributes())["max_norm"].set_f(max_norm);
    compute->add_inputs(total);
    factors.scale = rank.AddBuffer("gradient_norm.scale", kScalar, v1::SCRATCH);
    const int norm = rank.AddBuffer("gradient_norm", kScalar, v1::SCRATCH);
    compute->add_outputs(factors.scale);
    compute->add_outputs(norm);
    if (scales_loss()) {
      const v1::LossScale& scaling = options_.optimizer.loss_scale();
      const TensorSpec hyper = TensorSpec::Whole({DType::kF32, {2}});
      compute->set_op("unscale_gradients");
      (*compute->mutable_attributes())["initial"].set_f(scaling.initial());
      (*compute->mutable_attributes())["growth_interval"].set_i(scaling.growth_interval());
      compute->add_inputs(LossScaleState(device));
      // A device that only has the loss updates its loss-scaling state with the others.
      if (factors.hyper < 0) factors.hyper = rank.AddBuffer("schedule", hyper, v1::SCHEDULE);
      compute->add_inputs(factors.hyper);
      factors.hyper = rank.AddBuffer("schedule.updates", hyper, v1::SCRATCH);
      compute->add_outputs(factors.hyper);
    } else {
      compute->set_op("clip_scale");
    }
    if (device == totals.begin()->first) {
      v1::ReportInstruction* report = rank.Emit("gradient_norm")->mutable_report();
      report->set_buffer(norm);
      report->set_name("gradient_norm");
    }
  }
}

absl::Status Emitter::EmitPenalty(const PcgStructure::GradientInfo& g) {
  const std::string& name = structure_.graph().value(g.parameter).name;
  const Penalty penalty = PenaltyOf(options_.optimizer, name);
  if (penalty.l1 == 0 && penalty.l2 == 0) return absl::OkStatus();
  if (absl::Status status = TakeUpdateShards(g); !status.ok()) return status;
  const int layout = UpdateLayoutOf(g);
  const Instance& parameter = instances_.at({g.parameter, layout});
  Instance& gradient = instances_.at({g.gradient, layout});
  for (size_t i = 0; i < parameter.size(); ++i) {
    const Shard& shard = LayoutOf(layout).shards[i];
    RankProgram& rank = ranks_[shard.device];
    const auto emit = [&](const char* op, std::initializer_list<int> inputs, int output) {
      v1::ComputeInstruction* compute = rank.Emit(name)->mutable_compute();
      compute->set_op(op);
      (*compute->mutable_attributes())["l1"].set_f(penalty.l1);
      (*compute->mutable_attributes())["l2"].set_f(penalty.l2);
      for (int input : inputs) compute->add_inputs(input);
      compute->add_outputs(output);
    };
    if (options_.optimizer.report_penalties() && shard.replica == 0) {
      const int loss = rank.AddBuffer(absl::StrCat(name, ".penalty"), kScalar, v1::SCRATCH);
      emit("regularization_loss", {parameter[i]}, loss);
      v1::ReportInstruction* report = rank.Emit(name)->mutable_report();
      report->set_buffer(loss);
      report->set_name("loss");
    }
    // In place if no other buffer shares this memory, and it is not a sum that stays.
    const bool own =
        !passes_apart_ && (rank.owns_memory(gradient[i]) || bucket_of_.count(g.gradient) > 0);
    const int sum = own ? gradient[i]
                        : rank.AddBuffer(absl::StrCat(NameOf(g.gradient), ".regularized"),
                                         rank.spec(gradient[i]), v1::SCRATCH);
    const int scale = scales_loss() ? LossScale(shard.device) : -1;
    emit("regularize_gradient", {parameter[i], gradient[i], scale}, sum);
    gradient[i] = sum;
  }
  return absl::OkStatus();
}

v1::UpdateInstruction* Emitter::EmitUpdate(const PcgStructure::GradientInfo& g, size_t shard,
                                           const std::string& op) {
  const int layout = UpdateLayoutOf(g);
  const int device = LayoutOf(layout).shards[shard].device;
  const std::string& node = structure_.graph().node(structure_.base[g.parameter].node).name;
  const std::string& parameter = structure_.graph().value(g.parameter).name;
  const int hyper = Hyper(device, LearningRateScale(options_.optimizer, parameter));
  v1::UpdateInstruction* update = ranks_[device].Emit(node)->mutable_update();
  update->set_op(op);
  AttributesToProto(UpdateAttributes(update_, options_.optimizer, parameter),
                    update->mutable_attributes());
  update->set_parameter(instances_.at({g.parameter, layout})[shard]);
  update->set_gradient(instances_.at({g.gradient, layout})[shard]);
  for (int state : states_[g.parameter][shard]) update->add_state(state);
  update->set_scale(factors_.at(device).scale);
  update->set_hyper(hyper);
  return update;
}

int Emitter::Hyper(int device, double scale) {
  const int hyper = factors_.at(device).hyper;
  if (scale == 1) return hyper;
  auto [it, inserted] = scaled_schedules_.try_emplace({device, scale}, -1);
  if (inserted) {
    it->second = ranks_[device].AddBuffer("schedule.scaled", TensorSpec::Whole({DType::kF32, {2}}),
                                          v1::SCRATCH);
    v1::ComputeInstruction* compute = ranks_[device].Emit("schedule")->mutable_compute();
    compute->set_op("scale_learning_rate");
    (*compute->mutable_attributes())["factor"].set_f(scale);
    compute->add_inputs(hyper);
    compute->add_outputs(it->second);
  }
  return it->second;
}

absl::StatusOr<std::vector<std::vector<int>>> Emitter::EmitSums(
    const PcgStructure::GradientInfo& g) {
  const Layout& layout = LayoutOf(UpdateLayoutOf(g));
  const std::string& node = structure_.graph().node(structure_.base[g.parameter].node).name;
  const Value& parameter = structure_.graph().value(g.parameter);
  const std::vector<std::string>& ops = update_.def->update->sums;
  std::vector<std::vector<int>> sums(layout.shards.size());
  absl::StatusOr<std::vector<TensorType>> types =
      update_.SumTypes(*structure_.registry, parameter.type.dims);
  if (!types.ok()) return types.status();
  for (size_t k = 0; k < ops.size(); ++k) {
    const TensorSpec spec = TensorSpec::Whole((*types)[k]);
    for (size_t i = 0; i < layout.shards.size(); ++i) {
      RankProgram& rank = ranks_[layout.shards[i].device];
      const int result =
          rank.AddBuffer(absl::StrCat(parameter.name, ".", ops[k]), spec, v1::SCRATCH);
      v1::UpdateInstruction* update = EmitUpdate(g, i, ops[k]);
      for (int sum : sums[i]) update->add_sums(sum);
      update->set_result(result);
      sums[i].push_back(result);
    }
    // Each set of replicas holds every element once.
    for (int replica = 0; replica < layout.replicas; ++replica) {
      std::map<int, int> buffers;  // by device
      for (size_t i = 0; i < layout.shards.size(); ++i) {
        if (layout.shards[i].replica != replica) continue;
        buffers[layout.shards[i].device] = sums[i].back();
      }
      if (buffers.size() < 2) continue;
      std::vector<int> group;
      for (const auto& [device, buffer] : buffers) group.push_back(device);
      const uint64_t tag = next_tag_++;
      for (const auto& [device, buffer] : buffers) {
        v1::CollectiveInstruction* reduce = ranks_[device].Emit(node)->mutable_collective();
        reduce->set_kind(v1::CollectiveInstruction::ALL_REDUCE);
        reduce->set_group(ranks_[device].Group(group));
        reduce->set_input(buffer);
        reduce->set_output(buffer);
        reduce->set_tag(tag);
      }
    }
  }
  return sums;
}

bool Emitter::HasViews(const PcgStructure::GradientInfo& g) {
  const DType dtype = structure_.graph().value(g.parameter).type.dtype;
  return UpdatesInPlace(LayoutOf(StorageOf(g)), LayoutOf(UpdateLayoutOf(g)),
                        static_cast<int64_t>(SizeOf(dtype)));
}

absl::Status Emitter::TakeUpdateShards(const PcgStructure::GradientInfo& g) {
  const int storage = StorageOf(g), pieces = UpdateLayoutOf(g);
  if (pieces != storage && HasViews(g) && instances_.count({g.parameter, pieces}) == 0) {
    const Value& parameter = structure_.graph().value(g.parameter);
    Instance views;
    for (size_t i = 0; i < LayoutOf(pieces).shards.size(); ++i) {
      const Shard& piece = LayoutOf(pieces).shards[i];
      const int64_t begin = *ContiguousOffset(piece.region, LayoutOf(storage).shards[i].region) *
                            static_cast<int64_t>(SizeOf(parameter.type.dtype));
      views.push_back(ranks_[piece.device].AddSubBuffer(parameter.name, SpecOf(g.parameter, piece),
                                                        instances_.at({g.parameter, storage})[i],
                                                        begin));
    }
    instances_[{g.parameter, pieces}] = std::move(views);
  }
  const std::string& node = structure_.graph().node(structure_.base[g.parameter].node).name;
  return Ensure(g.parameter, pieces, node).status();
}

absl::Status Emitter::GatherUpdateShards(const PcgStructure::GradientInfo& g) {
  const int storage = StorageOf(g), pieces = UpdateLayoutOf(g);
  if (pieces == storage) return absl::OkStatus();
  const std::string& node = structure_.graph().node(structure_.base[g.parameter].node).name;
  absl::Status status = Reshard(g.parameter, pieces, storage, node);
  DropCopies(g);
  return status;
}

void Emitter::DropCopies(const PcgStructure::GradientInfo& g) {
  const int pieces = UpdateLayoutOf(g);
  if (pieces != StorageOf(g) && !HasViews(g)) instances_.erase({g.parameter, pieces});
}

absl::Status Emitter::UpdateParameter(const PcgStructure::GradientInfo& g) {
  if (absl::Status status = TakeUpdateShards(g); !status.ok()) return status;
  absl::StatusOr<std::vector<std::vector<int>>> sums = EmitSums(g);
  if (!sums.ok()) return sums.status();
  for (size_t i = 0; i < sums->size(); ++i) {
    v1::UpdateInstruction* update = EmitUpdate(g, i, update_.def->name);
    for (int sum : (*sums)[i]) update->add_sums(sum);
  }
  updated_.insert(g.parameter);
  return HasViews(g) ? absl::OkStatus() : GatherUpdateShards(g);
}

absl::Status Emitter::UpdateEarly(int position) {
  if (passes_apart_ || !UpdatesEarly(options_.optimizer)) return absl::OkStatus();
  for (const PcgStructure::GradientInfo& g : structure_.gradients) {
    if (g.ready != position || instances_.count({g.gradient, UpdateLayoutOf(g)}) == 0) continue;
    absl::Status status = EmitPenalty(g);
    if (status.ok()) status = UpdateParameter(g);
    if (status.ok() && HasViews(g)) status = GatherUpdateShards(g);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Emitter::UpdateParameters() {
  std::vector<const PcgStructure::GradientInfo*> left;
  for (const PcgStructure::GradientInfo& g : structure_.gradients) {
    if (updated_.count(g.parameter) == 0) left.push_back(&g);
  }
  // Updates with the same options beside each other, so that one kernel can run them.
  std::map<ValueId, int> group;
  for (const PcgStructure::GradientInfo* g : left) {
    group[g->parameter] = GroupOf(options_.optimizer, structure_.graph().value(g->parameter).name);
  }
  std::stable_sort(left.begin(), left.end(), [&](const auto* a, const auto* b) {
    return group[a->parameter] < group[b->parameter];
  });
  for (const PcgStructure::GradientInfo* g : left) {
    if (absl::Status status = EmitPenalty(*g); !status.ok()) return status;
    DropCopies(*g);  // the update takes them again, so that not all exist at once
  }
  EmitFactors();
  for (const PcgStructure::GradientInfo* g : left) {
    if (absl::Status status = UpdateParameter(*g); !status.ok()) return status;
  }
  // After all updates, so that one kernel can run neighboring updates.
  for (const PcgStructure::GradientInfo* g : left) {
    absl::Status status = HasViews(*g) ? GatherUpdateShards(*g) : absl::OkStatus();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace espalier
