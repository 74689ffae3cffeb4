// Emitter: batch tiling. An operator runs on one tile of its samples after another, so that only a
// tile of each tensor that it works on must be resident, and kernels need less workspace (Nie et
// al., "TSPLIT: fine-grained GPU memory management for efficient DNN training via tensor
// splitting", ICDE 2022). SplitRule says what may be split and which results are sums over tiles,
// as for shards on several devices. All tiles of an operator run before the next operator, so
// statistics of the whole batch stay correct. Sums round in another order; nothing else changes.
#include <algorithm>
#include <utility>

#include "planner/lowering/emitter.h"
#include "planner/memory/arena.h"

namespace espalier {
namespace {

// Smaller tiles save no significant memory.
constexpr int64_t kMinTileBytes = 4096;
// An untrained parameter may be a running statistic, which its operator updates; each tile but the
// first works on a copy. Larger operands are weights that must not be copied.
constexpr int64_t kMaxCopiedBytes = 65536;

const std::vector<int>& AxesOf(const SplitRule& rule, const LayoutRef& ref) {
  return (ref.output ? rule.outputs : rule.inputs)[ref.index];
}

bool Has(const std::vector<int>& axes, int axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

}  // namespace

int Emitter::TileOf(int rank, int buffer, int tile) {
  RankProgram& program = ranks_[rank];
  std::vector<int>& tiles = tiles_[{rank, buffer}];
  while (static_cast<int>(tiles.size()) <= tile) {
    TensorSpec spec = program.spec(buffer);
    spec.dims[0] /= batch_tiles_;
    spec.offset[0] += static_cast<int64_t>(tiles.size()) * spec.dims[0];
    tiles.push_back(program.AddBuffer(
        program.buffer(buffer)->name(), spec, program.kind(buffer), program.allocation_of(buffer),
        program.offset_in_allocation(buffer) + static_cast<int64_t>(tiles.size()) * spec.bytes()));
    program.buffer(tiles.back())->set_partial_sum(program.buffer(buffer)->partial_sum());
  }
  return tiles[tile];
}

void Emitter::EmitTiled(const Position& position, int rank, const std::string& node,
                        const v1::ComputeInstruction& whole) {
  RankProgram& program = ranks_[rank];
  const auto emit = [&](const v1::ComputeInstruction& compute) {
    *program.Emit(node)->mutable_compute() = compute;
  };
  const LayoutRef& of = position.outputs[0];
  if (batch_tiles_ == 1 || of.mode == LayoutRef::kParameterSum) return emit(whole);
  const SplitRule& rule = structure_.nodes[of.node].rule;

  struct Operand {
    const std::vector<int>* axes;
    int buffer;
    bool output;
    ValueId value;
  };
  std::vector<Operand> operands;
  for (int i = 0; i < whole.inputs_size(); ++i) {
    const Slot& slot = structure_.slots[position.first_slot + i];
    // A sum's operands all have the sum's layout.
    const LayoutRef& ref = position.role == Position::kGradientSum ? of : slot.required;
    if (whole.inputs(i) < 0) continue;
    operands.push_back({&AxesOf(rule, ref), whole.inputs(i), false, slot.value});
  }
  for (int k = 0; k < whole.outputs_size(); ++k) {
    if (whole.outputs(k) < 0) continue;
    operands.push_back({&AxesOf(rule, position.outputs[k]), whole.outputs(k), true, kNoValue});
  }
  const auto not_trained = [&](const Operand& o) {
    if (o.output || position.role != Position::kForward || structure_.forward_only) return false;
    const Value& value = structure_.graph().value(o.value);
    return value.kind == ValueKind::kParameter && !value.trainable;
  };
  const auto may_cut = [&](int axis) {
    int64_t largest = 0;
    for (const Operand& o : operands) {
      const TensorSpec& spec = program.spec(o.buffer);
      if (!Has(*o.axes, axis)) {
        // a sum over tiles would lose precision
        if (o.output && spec.dtype != DType::kF32) return false;
        if (not_trained(o) && spec.bytes() > kMaxCopiedBytes) return false;
        continue;
      }
      const int64_t bytes = spec.bytes() / batch_tiles_;
      if ((*o.axes)[0] != axis || std::count(o.axes->begin(), o.axes->end(), axis) != 1 ||
          spec.dims[0] % batch_tiles_ != 0 || bytes % kArenaAlignment != 0) {
        return false;
      }
      largest = std::max(largest, bytes);
    }
    for (const Halo& halo : rule.halos) {
      if (rule.inputs[halo.input][halo.dim] == axis) return false;
    }
    return largest >= kMinTileBytes && rule.axes[axis].size % batch_tiles_ == 0;
  };
  int axis = 0;
  while (axis < static_cast<int>(rule.axes.size()) &&
         (rule.axes[axis].kind != AxisKind::kSample || !may_cut(axis))) {
    ++axis;
  }
  if (axis == static_cast<int>(rule.axes.size())) return emit(whole);

  // By tile and operand: the buffer that replaces the whole one.
  std::vector<std::vector<int>> instead(batch_tiles_);
  for (int tile = 0; tile < batch_tiles_; ++tile) {
    for (const Operand& o : operands) {
      int buffer = o.buffer;
      const TensorSpec spec = program.spec(o.buffer);
      const Dims zero(spec.dims.size(), 0);
      if (Has(*o.axes, axis)) {
        buffer = TileOf(rank, o.buffer, tile);
      } else if (tile > 0 && (o.output || not_trained(o))) {
        buffer = program.AddBuffer(program.buffer(o.buffer)->name(), spec, v1::SCRATCH);
        program.buffer(buffer)->set_partial_sum(o.output);
        if (!o.output) program.Copy(node, o.buffer, buffer, zero, zero, spec.dims, false);
      }
      instead[tile].push_back(buffer);
    }
  }
  for (int tile = 0; tile < batch_tiles_; ++tile) {
    v1::ComputeInstruction compute = whole;
    auto next = instead[tile].begin();
    for (auto* buffers : {compute.mutable_inputs(), compute.mutable_outputs()}) {
      for (int32_t& b : *buffers) b = b < 0 ? b : *next++;
    }
    emit(compute);
    for (size_t i = 0; tile > 0 && i < operands.size(); ++i) {
      if (!operands[i].output || Has(*operands[i].axes, axis)) continue;
      const Dims dims = program.spec(operands[i].buffer).dims;
      const Dims zero(dims.size(), 0);
      program.Copy(node, instead[tile][i], operands[i].buffer, zero, zero, dims,
                   /*accumulate=*/true);
    }
  }
}

}  // namespace espalier
