// Emitter: what follows the backward pass: gradients are summed over devices, clipped and applied.
#include <set>

#include "absl/strings/str_cat.h"
#include "planner/lowering/emitter.h"
#include "planner/pcg/buckets.h"

namespace espalier {
namespace {

const TensorSpec kScalar = TensorSpec::Whole({DType::kF32, {}});

}  // namespace

absl::Status Emitter::Synchronise() {
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
        const int target = Resolved(structure_.slots[info[gradient]->slot].required);
        const ReshardCollective& c = (*table_.Reshard(base, target))->collectives[index];
        const int own = instances_.at({gradient, base})[c.sources[r]];
        Instance& reduced = instances_[{gradient, target}];
        reduced.resize(LayoutOf(target).shards.size(), -1);
        reduced[c.targets[r]] = own;
        if (buffer < 0) buffer = own;
      }
      proto::CollectiveInstruction* collective =
          rank.Emit(plan_node(bucket.members[0].first))->mutable_collective();
      collective->set_kind(proto::CollectiveInstruction::ALL_REDUCE);
      collective->set_group(rank.Group(bucket.ranks));
      collective->set_input(buffer);
      collective->set_output(buffer);
      collective->set_tag(tag);
    }
  }
  for (const PcgStructure::GradientInfo& g : structure_.gradients) {
    const int target = Resolved(structure_.slots[g.slot].required);
    absl::StatusOr<const Instance*> ready = Ensure(g.gradient, target, plan_node(g.gradient));
    if (!ready.ok()) return ready.status();
  }
  return absl::OkStatus();
}

std::map<int, int> Emitter::EmitClipping() {
  const std::string node = "gradient_norm";
  std::map<int, std::vector<int>> squares;  // by rank
  for (size_t number = 0; number < structure_.gradients.size(); ++number) {
    const PcgStructure::GradientInfo& g = structure_.gradients[number];
    const int target = Resolved(structure_.slots[g.slot].required);
    const int owner = OwnerOfNorm(static_cast<int>(number), LayoutOf(target));
    const Instance& gradient = instances_.at({g.gradient, target});
    for (size_t i = 0; i < gradient.size(); ++i) {
      const Shard& shard = LayoutOf(target).shards[i];
      std::vector<int>& sums = squares[shard.device];
      if (shard.replica != owner) continue;  // each element counts once
      RankProgram& rank = ranks_[shard.device];
      const int sum =
          rank.AddBuffer(absl::StrCat(NameOf(g.gradient), ".squares"), kScalar, proto::SCRATCH);
      proto::ComputeInstruction* compute = rank.Emit(node)->mutable_compute();
      compute->set_op("sum_squares");
      compute->add_inputs(gradient[i]);
      compute->add_outputs(sum);
      sums.push_back(sum);
    }
  }

  std::vector<int> group;
  for (const auto& [device, sums] : squares) group.push_back(device);
  const uint64_t tag = next_tag_++;
  std::map<int, int> scales;
  for (const auto& [device, sums] : squares) {
    RankProgram& rank = ranks_[device];
    const int total = rank.AddBuffer("gradient_norm.squares", kScalar, proto::SCRATCH);
    if (sums.empty()) {
      rank.Emit(node)->mutable_fill()->set_buffer(total);
    } else {
      proto::ComputeInstruction* add = rank.Emit(node)->mutable_compute();
      add->set_op("add_n");
      for (int sum : sums) add->add_inputs(sum);
      add->add_outputs(total);
    }
    if (group.size() > 1) {
      proto::CollectiveInstruction* reduce = rank.Emit(node)->mutable_collective();
      reduce->set_kind(proto::CollectiveInstruction::ALL_REDUCE);
      reduce->set_group(rank.Group(group));
      reduce->set_input(total);
      reduce->set_output(total);
      reduce->set_tag(tag);
    }
    scales[device] = rank.AddBuffer("gradient_norm.scale", kScalar, proto::SCRATCH);
    const int norm = rank.AddBuffer("gradient_norm", kScalar, proto::SCRATCH);
    proto::ComputeInstruction* clip = rank.Emit(node)->mutable_compute();
    clip->set_op("clip_scale");
    (*clip->mutable_attributes())["max_norm"].set_f(options_.optimizer.clip_norm());
    clip->add_inputs(total);
    clip->add_outputs(scales[device]);
    clip->add_outputs(norm);
    if (device == group.front()) {
      proto::ReportInstruction* report = rank.Emit(node)->mutable_report();
      report->set_buffer(norm);
      report->set_name("gradient_norm");
    }
  }
  return scales;
}

absl::Status Emitter::Update() {
  std::map<int, int> scales;
  if (options_.optimizer.clip_norm() > 0) scales = EmitClipping();
  for (const PcgStructure::GradientInfo& g : structure_.gradients) {
    const int layout = Resolved(structure_.base[g.parameter]);
    const Instance& parameter = instances_.at({g.parameter, layout});
    const Instance& gradient = instances_.at({g.gradient, layout});
    const std::string& node = structure_.graph().node(structure_.base[g.parameter].node).name;
    for (size_t i = 0; i < parameter.size(); ++i) {
      const int device = LayoutOf(layout).shards[i].device;
      proto::UpdateInstruction* update = ranks_[device].Emit(node)->mutable_update();
      update->set_parameter(parameter[i]);
      update->set_gradient(gradient[i]);
      for (int state : states_[g.parameter][i]) update->add_state(state);
      update->set_scale(scales.empty() ? -1 : scales.at(device));
    }
  }
  return absl::OkStatus();
}

}  // namespace espalier
