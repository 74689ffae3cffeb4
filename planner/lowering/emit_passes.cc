// Emitter: the training program of a session, whose client runs the forward pass, the backward pass
// and the update one by one. No update begins before the backward pass is over, and no backward
// pass of a micro-batch before the last forward pass. Synchronized gradients are summed in buffers
// that stay; the update reads those. All sums round as in a job's program, so a step gives the same
// bits.
#include <algorithm>

#include "planner/lowering/emitter.h"

namespace espalier {

void Emitter::AddGradientSums() {
  for (const PcgStructure::GradientInfo& g : structure_.gradients) {
    Instance& sums = gradient_sums_[g.gradient];
    for (const Shard& shard : LayoutOf(UpdateLayoutOf(g)).shards) {
      sums.push_back(ranks_[shard.device].AddBuffer(NameOf(g.gradient), SpecOf(g.gradient, shard),
                                                    v1::OPTIMIZER_STATE));
    }
  }
}

void Emitter::MarkAll() {
  for (RankProgram& rank : ranks_) rank.Mark();
}

void Emitter::SumGradients(bool accumulate) {
  for (const PcgStructure::GradientInfo& g : structure_.gradients) {
    const std::string& node = structure_.graph().node(structure_.base[g.parameter].node).name;
    const int layout = UpdateLayoutOf(g);
    const Instance& gradient = instances_.at({g.gradient, layout});
    const Instance& sums = gradient_sums_.at(g.gradient);
    for (size_t i = 0; i < sums.size(); ++i) {
      const Shard& shard = LayoutOf(layout).shards[i];
      const Dims zero(shard.region.size.size(), 0);
      ranks_[shard.device].Copy(node, gradient[i], sums[i], zero, zero, shard.region.size,
                                accumulate);
    }
  }
}

absl::Status Emitter::KeepResults() {
  for (int m = 0; m < structure_.micro_batches; ++m) {
    SelectMicroBatch(m);
    for (const auto& [name, value] : structure_.outputs) {
      LayoutRef ref = structure_.base[value];
      const std::string& node = structure_.graph().node(ref.node).name;
      ref.mode = LayoutRef::kReduced;
      const int layout = Resolved(ref);
      absl::StatusOr<const Instance*> instance = Ensure(value, layout, node);
      if (!instance.ok()) return instance.status();
      for (size_t i = 0; i < (*instance)->size(); ++i) {
        const Shard& shard = LayoutOf(layout).shards[i];
        if (shard.replica == 0) ranks_[shard.device].AddOutput(name, (**instance)[i]);
      }
    }
  }
  SelectMicroBatch(0);
  return absl::OkStatus();
}

absl::Status Emitter::RunPassesApart(const std::vector<ScheduleItem>& schedule,
                                     const std::vector<bool>& crossing) {
  const auto is_backward = [](const Position& position) {
    return position.role != Position::kForward;
  };
  const std::vector<Position>& positions = structure_.positions;
  const int border = static_cast<int>(
      std::find_if(positions.begin(), positions.end(), is_backward) - positions.begin());
  for (ScheduleItem item : schedule) {
    item.last = std::min(item.last, border);
    if (absl::Status status = RunItem(item, crossing); !status.ok()) return status;
  }
  if (absl::Status status = KeepResults(); !status.ok()) return status;
  MarkAll();
  for (ScheduleItem item : schedule) {
    item.first = std::max(item.first, border);
    if (absl::Status status = RunItem(item, crossing); !status.ok()) return status;
  }
  SelectMicroBatch(0);
  if (absl::Status status = SyncGradients(); !status.ok()) return status;
  MarkAll();
  for (const bool accumulate : {false, true}) {
    SumGradients(accumulate);
    MarkAll();
  }
  for (const PcgStructure::GradientInfo& g : structure_.gradients) {
    instances_[{g.gradient, UpdateLayoutOf(g)}] = gradient_sums_.at(g.gradient);
  }
  return UpdateParameters();
}

}  // namespace espalier
