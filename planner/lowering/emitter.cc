#include "planner/lowering/emitter.h"

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "planner/memory/arena.h"
#include "planner/pcg/gradient_buckets.h"
#include "planner/pcg/micro_batches.h"

namespace espalier {
namespace {

// Returns the bytes of `region` of a dense tensor.
std::string Slice(const std::string& bytes, const TensorType& type, const Region& region) {
  const size_t element = SizeOf(type.dtype);
  std::string out;
  Dims at = region.start;
  const size_t rank = type.dims.size();
  const int64_t run = rank == 0 ? 1 : region.size[rank - 1];
  const int64_t runs = run == 0 ? 0 : region.num_elements() / run;
  for (int64_t r = 0; r < runs; ++r) {
    int64_t index = 0;
    for (size_t d = 0; d < rank; ++d) index = index * type.dims[d] + at[d];
    out.append(bytes, index * element, run * element);
    for (size_t d = rank - (rank > 0); d-- > 0;) {
      if (++at[d] < region.start[d] + region.size[d]) break;
      at[d] = region.start[d];
    }
  }
  return out;
}

}  // namespace

uint64_t NodeKey(const std::string& node_name) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (unsigned char c : node_name) hash = (hash ^ c) * 0x100000001b3u;
  return hash;
}

Emitter::Emitter(const PcgStructure& structure, const Placement& placement, ConfigTable& table,
                 int num_ranks, const LoweringOptions& options, int batch_tiles, bool passes_apart)
    : structure_(structure),
      placement_(placement),
      table_(table),
      options_(options),
      batch_tiles_(batch_tiles),
      passes_apart_(passes_apart && !structure.forward_only) {
  for (int rank = 0; rank < num_ranks; ++rank) ranks_.emplace_back(rank, num_ranks);
  for (const Value& value : structure.graph().values()) names_.push_back(value.name);
  for (const PcgStructure::GradientInfo& g : structure.gradients) {
    names_[g.gradient] = absl::StrCat(structure.graph().value(g.parameter).name, ".grad");
  }
}

TensorSpec Emitter::SpecOf(ValueId value, const Shard& shard) const {
  const TensorType& type = structure_.graph().value(value).type;
  TensorSpec spec = {type.dtype, shard.region.size, shard.region.start, type.dims};
  if (const int d = structure_.BatchDim(value); d >= 0) {
    spec.offset[d] += micro_batch_ * type.dims[d];
    spec.global[d] *= structure_.micro_batches;
  }
  return spec;
}

const Node& Emitter::PlanNode(const Position& position) const {
  const Graph& graph = structure_.graph();
  if (position.config_node != kNoNode) return graph.node(position.config_node);
  return graph.node(position.outputs[0].node);
}

void Emitter::AddParameters() {
  const Graph& graph = structure_.graph();
  for (ValueId v = 0; v < static_cast<ValueId>(graph.values().size()); ++v) {
    const Value& value = graph.value(v);
    if (value.kind != ValueKind::kParameter) continue;
    if (!structure_.base[v].present()) {
      // Nothing reads it, but the model has it: it is initialized and saved like the others.
      if (structure_.serving) continue;
      const int buffer =
          ranks_[0].AddBuffer(value.name, TensorSpec::Whole(value.type), v1::PARAMETER_SHARD);
      *ranks_[0].buffer(buffer)->mutable_initializer() = ToProto(value.initializer);
      ranks_[0].buffer(buffer)->set_literal(value.constant);
      continue;
    }
    const int layout = Resolved(structure_.base[v]);
    Instance& instance = instances_[{v, layout}];
    for (const Shard& shard : LayoutOf(layout).shards) {
      RankProgram& rank = ranks_[shard.device];
      const int buffer = rank.AddBuffer(value.name, SpecOf(v, shard), v1::PARAMETER_SHARD);
      *rank.buffer(buffer)->mutable_initializer() = ToProto(value.initializer);
      rank.buffer(buffer)->set_literal(value.constant);
      instance.push_back(buffer);
    }
  }
  for (const PcgStructure::GradientInfo& g : structure_.gradients) {
    std::vector<std::vector<int>>& states = states_[g.parameter];
    const Value& value = graph.value(g.parameter);
    for (const Shard& shard : LayoutOf(UpdateLayoutOf(g)).shards) {
      states.emplace_back();
      for (const Update::State& state : update_.States(value.type.dims)) {
        if (state.name.empty()) {
          states.back().push_back(-1);
          continue;
        }
        TensorSpec spec = SpecOf(g.parameter, shard);
        spec.dtype = DType::kF32;
        if (state.dims.has_value()) spec = TensorSpec::Whole({DType::kF32, *state.dims});
        states.back().push_back(ranks_[shard.device].AddBuffer(
            absl::StrCat(value.name, ".", state.name), spec, v1::OPTIMIZER_STATE));
      }
    }
  }
}

absl::Status Emitter::PlanBuckets() {
  GradientBuckets assigned;
  std::map<std::pair<std::vector<int>, DType>, int> groups;
  for (const PcgStructure::GradientInfo& g : structure_.gradients) {
    const int base = Resolved(structure_.base[g.gradient]);
    const int target = UpdateLayoutOf(g);
    if (base == target) continue;
    absl::StatusOr<const ReshardPlan*> plan = table_.Reshard(base, target);
    if (!plan.ok()) return plan.status();
    if (!(*plan)->all_reduce_only()) continue;
    const DType dtype = structure_.graph().value(g.gradient).type.dtype;
    std::vector<BucketPlace>& places = bucket_of_[g.gradient];
    places.resize(LayoutOf(base).shards.size());
    for (size_t i = 0; i < (*plan)->collectives.size(); ++i) {
      const ReshardCollective& c = (*plan)->collectives[i];
      const int group =
          groups.try_emplace({c.ranks, dtype}, static_cast<int>(groups.size())).first->second;
      const int64_t bytes = AlignUp(c.elements * static_cast<int64_t>(SizeOf(dtype)));
      const int bucket = assigned.Add(group, bytes);
      if (bucket == static_cast<int>(buckets_.size())) buckets_.emplace_back();
      buckets_[bucket].ranks = c.ranks;
      buckets_[bucket].members.emplace_back(g.gradient, static_cast<int>(i));
      for (int source : c.sources) {
        places[source] = {bucket, assigned.buckets()[bucket].bytes - bytes};
      }
    }
  }
  for (size_t b = 0; b < buckets_.size(); ++b) {
    BucketBuffers& bucket = buckets_[b];
    const int64_t bytes = assigned.buckets()[b].bytes;
    const DType dtype = structure_.graph().value(bucket.members[0].first).type.dtype;
    const TensorSpec spec =
        TensorSpec::Whole({dtype, {bytes / static_cast<int64_t>(SizeOf(dtype))}});
    for (int rank : bucket.ranks) {
      bucket.allocations.push_back(ranks_[rank].Allocate(bytes));
      bucket.buffers.push_back(bucket.members.size() == 1
                                   ? -1  // the gradient's own buffer
                                   : ranks_[rank].AddBuffer(absl::StrCat("gradients.", b), spec,
                                                            v1::SCRATCH, bucket.allocations.back(),
                                                            0));
    }
  }
  return absl::OkStatus();
}

absl::Status Emitter::Run() {
  if (!structure_.forward_only) {
    absl::StatusOr<UpdateChoice> update = ChooseUpdate(*structure_.registry, options_.optimizer);
    if (!update.ok()) return update.status();
    update_ = *std::move(update);
  }
  AddParameters();
  if (passes_apart_) AddGradientSums();
  AddSchedules();
  if (absl::Status status = PlanBuckets(); !status.ok()) return status;
  of_micro_batch_.assign(structure_.micro_batches, instances_);  // the parameters
  const std::vector<int> stages =
      PipelineStagesOf(structure_, placement_, table_.layouts(), static_cast<int>(ranks_.size()));
  const std::vector<bool> crossing = CrossStageSlots(structure_, stages);
  const std::vector<ScheduleItem> schedule = MakePipelineSchedule(structure_, stages);
  if (passes_apart_) return RunPassesApart(schedule, crossing);
  for (const ScheduleItem& item : schedule) {
    if (absl::Status status = RunItem(item, crossing); !status.ok()) return status;
  }
  if (structure_.forward_only) return structure_.serving ? absl::OkStatus() : KeepResults();
  SelectMicroBatch(0);
  if (absl::Status status = SyncGradients(); !status.ok()) return status;
  return UpdateParameters();
}

absl::Status Emitter::RunItem(const ScheduleItem& item, const std::vector<bool>& crossing) {
  SelectMicroBatch(item.micro_batch);
  for (int p = item.first; p < item.last && item.transfers; ++p) {
    const Position& position = structure_.positions[p];
    for (int s = position.first_slot; s < position.last_slot; ++s) {
      if (!crossing[s]) continue;
      const Slot& slot = structure_.slots[s];
      const auto made = Ensure(slot.value, Resolved(slot.required), PlanNode(position).name);
      if (!made.ok()) return made.status();
    }
  }
  for (int p = item.first; p < item.last && !item.transfers; ++p) {
    const Position& position = structure_.positions[p];
    if (absl::Status status = RunPosition(position); !status.ok()) return status;
    if (structure_.micro_batches > 1) {
      AccumulateGradients(position);
    } else if (absl::Status status = UpdateEarly(p); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

void Emitter::SelectMicroBatch(int number) {
  if (number == micro_batch_) return;
  of_micro_batch_[micro_batch_] = std::move(instances_);
  instances_ = std::move(of_micro_batch_[number]);
  micro_batch_ = number;
}

void Emitter::AccumulateGradients(const Position& position) {
  for (const auto& [v, id] :
       AccumulatedGradients(structure_, placement_, table_.layouts(), position)) {
    Instance& own = instances_.at({v, id});
    for (size_t i = 0; i < own.size(); ++i) {
      const Shard& shard = LayoutOf(id).shards[i];
      RankProgram& rank = ranks_[shard.device];
      const Dims zero(shard.region.size.size(), 0);
      const std::string& name = PlanNode(position).name;
      if (micro_batch_ > 0) {
        const int sum = of_micro_batch_[0].at({v, id})[i];
        rank.Copy(name, own[i], sum, zero, zero, shard.region.size, /*accumulate=*/true);
      } else if (bucket_of_.count(v) == 0 && !rank.owns_memory(own[i])) {
        // The sum must not overwrite memory that another buffer shares.
        const int sum = rank.AddBuffer(NameOf(v), rank.spec(own[i]), v1::SCRATCH);
        rank.Copy(name, own[i], sum, zero, zero, shard.region.size, /*accumulate=*/false);
        own[i] = sum;
      }
    }
  }
}

absl::Status Emitter::RunPosition(const Position& position) {
  std::vector<const Instance*> operands;
  for (int s = position.first_slot; s < position.last_slot; ++s) {
    const Slot& slot = structure_.slots[s];
    if (slot.value == kNoValue) {
      operands.push_back(nullptr);
      continue;
    }
    absl::StatusOr<const Instance*> operand =
        Ensure(slot.value, Resolved(slot.required), PlanNode(position).name);
    if (!operand.ok()) return operand.status();
    operands.push_back(*operand);
  }
  if (position.config_node != kNoNode &&
      (position.role == Position::kForward || position.role == Position::kBackward)) {
    EmitCompute(position, operands);
  } else if (position.role != Position::kScatter) {
    EmitSumOrSeed(position, operands);
  }
  DropGatheredCopies(position);
  if (position.role == Position::kForward) EmitReports(structure_.graph().node(position.node));
  return absl::OkStatus();
}

void Emitter::DropGatheredCopies(const Position& position) {
  for (int s = position.first_slot; s < position.last_slot; ++s) {
    const Slot& slot = structure_.slots[s];
    if (slot.value == kNoValue) continue;
    if (!GatheredForEachUse(structure_, placement_, table_.layouts(), slot.value)) continue;
    const int layout = Resolved(slot.required);
    if (layout != Resolved(structure_.base[slot.value])) instances_.erase({slot.value, layout});
  }
}

int Emitter::AddBuffer(RankProgram* rank, ValueId value, const std::string& name,
                       const TensorSpec& spec, v1::BufferKind kind) {
  const int buffer = rank->AddBuffer(name, spec, kind);
  rank->buffer(buffer)->set_dynamic(structure_.Dynamic(value));
  return buffer;
}

bool Emitter::IsPartialSum(ValueId value, const Layout& layout) const {
  if (layout.partials > 1 || layout.overlap == Overlap::kSummed) return true;
  // Of each micro-batch.
  return structure_.micro_batches > 1 && structure_.BatchDim(value) < 0;
}

int Emitter::NewOutput(ValueId value, const Layout& layout, int shard) {
  RankProgram& rank = ranks_[layout.shards[shard].device];
  const TensorSpec spec = SpecOf(value, layout.shards[shard]);
  const auto add = [&](int allocation, int64_t offset) {
    const int buffer = rank.AddBuffer(NameOf(value), spec, v1::SCRATCH, allocation, offset);
    rank.buffer(buffer)->set_dynamic(structure_.Dynamic(value));
    if (IsPartialSum(value, layout)) rank.buffer(buffer)->set_partial_sum(true);
    return buffer;
  };
  // Later micro-batches accumulate into the first one's buffers.
  auto it = micro_batch_ == 0 ? bucket_of_.find(value) : bucket_of_.end();
  if (it == bucket_of_.end()) return add(-1, 0);
  const BucketPlace& place = it->second[shard];
  const BucketBuffers& bucket = buckets_[place.bucket];
  for (size_t r = 0; r < bucket.ranks.size(); ++r) {
    if (bucket.ranks[r] == layout.shards[shard].device) {
      return add(bucket.allocations[r], place.offset);
    }
  }
  return add(-1, 0);
}

void Emitter::EmitCompute(const Position& position, const std::vector<const Instance*>& operands) {
  const Node& node = structure_.graph().node(position.node);
  const Node& plan_node = PlanNode(position);
  const std::vector<int>& devices = placement_[position.config_node]->config.devices;
  std::vector<Instance*> results(node.outputs.size(), nullptr);
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    const ValueId v = node.outputs[k];
    if (v == kNoValue) continue;
    bool read = !structure_.slots_of_value[v].empty();
    for (const auto* results : {&structure_.reports, &structure_.outputs}) {
      for (const auto& [name, result] : *results) read = read || result == v;
    }
    if (read) {
      results[k] = &instances_[{v, Resolved(position.outputs[k])}];
      results[k]->assign(devices.size(), -1);
    }
  }
  for (int part = 0; part < static_cast<int>(devices.size()); ++part) {
    RankProgram& rank = ranks_[devices[part]];
    std::vector<int> inputs;
    for (const Instance* operand : operands) {
      inputs.push_back(operand == nullptr ? -1 : (*operand)[part]);
    }
    if (structure_.nodes[position.config_node].def->view && results[0] != nullptr &&
        inputs.back() >= 0 && bucket_of_.count(node.outputs[0]) == 0) {
      const Layout& layout = LayoutOf(Resolved(position.outputs[0]));
      const TensorSpec spec = SpecOf(node.outputs[0], layout.shards[part]);
      const int source = node.op.ends_with("_grad") ? inputs.back() : inputs[0];
      if (source >= 0 && rank.kind(source) == v1::SCRATCH &&
          rank.spec(source).bytes() == spec.bytes() && rank.spec(source).dtype == spec.dtype) {
        const int alias = rank.AddAlias(NameOf(node.outputs[0]), spec, source);
        rank.buffer(alias)->set_dynamic(structure_.Dynamic(node.outputs[0]));
        rank.buffer(alias)->set_partial_sum(IsPartialSum(node.outputs[0], layout));
        (*results[0])[part] = alias;
        continue;
      }
    }
    v1::ComputeInstruction compute;
    compute.set_op(node.op);
    AttributesToProto(node.attributes, compute.mutable_attributes());
    for (int input : inputs) compute.add_inputs(input);
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      if (results[k] != nullptr) {
        const Layout& layout = LayoutOf(Resolved(position.outputs[k]));
        (*results[k])[part] = NewOutput(node.outputs[k], layout, part);
      }
      compute.add_outputs(results[k] == nullptr ? -1 : (*results[k])[part]);
    }
    compute.set_node_key(NodeKey(plan_node.name));
    EmitTiled(position, devices[part], plan_node.name, compute);
  }
}

void Emitter::EmitSumOrSeed(const Position& position,
                            const std::vector<const Instance*>& operands) {
  const Node& node = structure_.graph().node(position.node);
  const Node& plan_node = PlanNode(position);
  const int id = Resolved(position.outputs[0]);
  const Layout& layout = LayoutOf(id);
  Instance result;
  for (int part = 0; part < static_cast<int>(layout.shards.size()); ++part) {
    RankProgram& rank = ranks_[layout.shards[part].device];
    result.push_back(NewOutput(node.outputs[0], layout, part));
    if (position.role == Position::kSeed && scales_loss()) {
      EmitLossScale(layout.shards[part].device, result.back());
      if (part > 0 || micro_batch_ > 0) continue;
      v1::ReportInstruction* report = rank.Emit(plan_node.name)->mutable_report();
      report->set_buffer(result.back());
      report->set_name("loss_scale");
      continue;
    }
    if (position.role == Position::kSeed) {
      v1::Instruction* instruction = rank.Emit(plan_node.name);
      instruction->mutable_fill()->set_buffer(result.back());
      instruction->mutable_fill()->set_value(node.attributes.Float("value", 1));
      continue;
    }
    v1::ComputeInstruction compute;
    compute.set_op(node.op);
    AttributesToProto(node.attributes, compute.mutable_attributes());
    for (const Instance* operand : operands) compute.add_inputs((*operand)[part]);
    compute.add_outputs(result.back());
    compute.set_node_key(NodeKey(node.name));
    EmitTiled(position, layout.shards[part].device, plan_node.name, compute);
  }
  instances_[{node.outputs[0], id}] = std::move(result);
}

void Emitter::EmitReports(const Node& node) {
  for (const auto& [name, value] : structure_.reports) {
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      if (node.outputs[k] != value) continue;
      // Reports add up. What does not depend on the batch is the same in each micro-batch.
      if (micro_batch_ > 0 && !structure_.adds_up[value]) continue;
      const int id = Resolved(structure_.base[value]);
      const Instance& instance = instances_.at({value, id});
      for (size_t i = 0; i < instance.size(); ++i) {
        v1::ReportInstruction* report =
            ranks_[LayoutOf(id).shards[i].device].Emit(node.name)->mutable_report();
        report->set_buffer(instance[i]);
        report->set_name(name);
      }
    }
  }
}

int Emitter::LoadShard(ValueId value, const TensorSpec& spec, const std::string& node,
                       RankProgram* rank) {
  const Value& v = structure_.graph().value(value);
  switch (v.kind) {
    case ValueKind::kInput: {
      const int buffer = AddBuffer(rank, value, v.name, spec, v1::HOST_INPUT);
      if (structure_.serving) return buffer;  // the caller writes it
      auto column = options_.columns.find(v.name);
      v1::LoadBatchInstruction* load = rank->EmitPrologue(node)->mutable_load_batch();
      load->set_buffer(buffer);
      load->set_column(column == options_.columns.end() ? v.name : column->second);
      return buffer;
    }
    case ValueKind::kParameter: {
      const int buffer = rank->AddBuffer(v.name, spec, v1::PARAMETER_SHARD);
      *rank->buffer(buffer)->mutable_initializer() = ToProto(v.initializer);
      rank->buffer(buffer)->set_literal(v.constant);
      return buffer;
    }
    case ValueKind::kState:
      return rank->AddBuffer(v.name, spec, v1::PERSISTENT);
    default: {
      const int buffer = rank->AddBuffer(v.name, spec, v1::LITERAL);
      if (static_cast<int64_t>(v.constant.size()) > options_.max_literal_bytes) {
        rank->buffer(buffer)->mutable_initializer()->set_kind(v1::Initializer::STORED);
      } else {
        rank->buffer(buffer)->set_literal(
            Slice(v.constant, {v.type.dtype, spec.global}, {spec.offset, spec.dims}));
      }
      return buffer;
    }
  }
}

const Emitter::Instance& Emitter::Load(ValueId value, int layout, const std::string& node) {
  Instance& instance = instances_[{value, layout}];
  for (const Shard& shard : LayoutOf(layout).shards) {
    const TensorSpec spec = SpecOf(value, shard);
    auto [it, inserted] = loaded_.try_emplace({value, shard.device, spec.offset, spec.dims}, -1);
    if (inserted) it->second = LoadShard(value, spec, node, &ranks_[shard.device]);
    instance.push_back(it->second);
  }
  return instance;
}

absl::StatusOr<const Emitter::Instance*> Emitter::Ensure(ValueId value, int layout,
                                                         const std::string& node) {
  auto it = instances_.find({value, layout});
  if (it != instances_.end()) return &it->second;
  const LayoutRef& base = structure_.base[value];
  if (!base.present()) return &Load(value, layout, node);
  if (absl::Status status = Reshard(value, Resolved(base), layout, node); !status.ok()) {
    return status;
  }
  return &instances_.at({value, layout});
}

}  // namespace espalier
