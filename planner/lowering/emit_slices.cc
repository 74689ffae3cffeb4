// Emitter: operators in slices of their samples, one behind the other, so that no more than a slice
// of what they work on need be there at once, and kernels need as much less workspace. (Nie et al.,
// "TSPLIT: fine-grained GPU memory management for efficient DNN training via tensor splitting",
// ICDE 2022.) What may be cut, and which results are sums over the slices, is what SplitRule says
// of shards on several devices. All slices of an operator run before the next operator, so that
// statistics of the whole batch stay those of the whole batch: sums are rounded in another order,
// nothing else changes.
#include <algorithm>
#include <utility>

#include "planner/lowering/emitter.h"
#include "planner/memory/arena.h"

namespace espalier {
namespace {

// Smaller pieces gain no memory that counts.
constexpr int64_t kLeastSlice = 4096;
// What is not trained may be a running statistic, which its operator moves; each slice but the
// first works on a copy. Larger operands are weights that are not to be copied.
constexpr int64_t kMostCopied = 65536;

const std::vector<int>& AxesOf(const SplitRule& rule, const LayoutRef& ref) {
  return (ref.output ? rule.outputs : rule.inputs)[ref.index];
}

bool Has(const std::vector<int>& axes, int axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

}  // namespace

int Emitter::SliceOf(int rank, int buffer, int slice) {
  RankProgram& program = ranks_[rank];
  std::vector<int>& slices = slices_[{rank, buffer}];
  while (static_cast<int>(slices.size()) <= slice) {
    TensorSpec spec = program.spec(buffer);
    spec.dims[0] /= batch_slices_;
    spec.offset[0] += static_cast<int64_t>(slices.size()) * spec.dims[0];
    slices.push_back(program.AddBuffer(
        program.buffer(buffer)->name(), spec, program.kind(buffer), program.allocation_of(buffer),
        program.offset_in_allocation(buffer) + static_cast<int64_t>(slices.size()) * spec.bytes()));
  }
  return slices[slice];
}

void Emitter::EmitSliced(const Position& position, int rank, const std::string& node,
                         const v1::ComputeInstruction& whole) {
  RankProgram& program = ranks_[rank];
  const auto emit = [&](const v1::ComputeInstruction& compute) {
    *program.Emit(node)->mutable_compute() = compute;
  };
  const LayoutRef& of = position.outputs[0];
  if (batch_slices_ == 1 || of.mode == LayoutRef::kParameterSum) return emit(whole);
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
    // A sum's operands are all spread as it is.
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
        if (o.output && spec.dtype != DType::kF32) return false;  // its sum would lose too much
        if (not_trained(o) && spec.bytes() > kMostCopied) return false;
        continue;
      }
      const int64_t bytes = spec.bytes() / batch_slices_;
      if ((*o.axes)[0] != axis || std::count(o.axes->begin(), o.axes->end(), axis) != 1 ||
          spec.dims[0] % batch_slices_ != 0 || bytes % kArenaAlignment != 0) {
        return false;
      }
      largest = std::max(largest, bytes);
    }
    for (const Halo& halo : rule.halos) {
      if (rule.inputs[halo.input][halo.dim] == axis) return false;
    }
    return largest >= kLeastSlice && rule.axes[axis].size % batch_slices_ == 0;
  };
  int axis = 0;
  while (axis < static_cast<int>(rule.axes.size()) &&
         (rule.axes[axis].kind != AxisKind::kSample || !may_cut(axis))) {
    ++axis;
  }
  if (axis == static_cast<int>(rule.axes.size())) return emit(whole);

  // By slice and operand: the buffer that stands for the whole one.
  std::vector<std::vector<int>> instead(batch_slices_);
  for (int slice = 0; slice < batch_slices_; ++slice) {
    for (const Operand& o : operands) {
      int buffer = o.buffer;
      const TensorSpec spec = program.spec(o.buffer);
      const Dims zero(spec.dims.size(), 0);
      if (Has(*o.axes, axis)) {
        buffer = SliceOf(rank, o.buffer, slice);
      } else if (slice > 0 && (o.output || not_trained(o))) {
        buffer = program.AddBuffer(program.buffer(o.buffer)->name(), spec, v1::SCRATCH);
        if (!o.output) program.Copy(node, o.buffer, buffer, zero, zero, spec.dims, false);
      }
      instead[slice].push_back(buffer);
    }
  }
  for (int slice = 0; slice < batch_slices_; ++slice) {
    v1::ComputeInstruction compute = whole;
    auto next = instead[slice].begin();
    for (auto* buffers : {compute.mutable_inputs(), compute.mutable_outputs()}) {
      for (int32_t& b : *buffers) b = b < 0 ? b : *next++;
    }
    emit(compute);
    for (size_t i = 0; slice > 0 && i < operands.size(); ++i) {
      if (!operands[i].output || Has(*operands[i].axes, axis)) continue;
      const Dims dims = program.spec(operands[i].buffer).dims;
      const Dims zero(dims.size(), 0);
      program.Copy(node, instead[slice][i], operands[i].buffer, zero, zero, dims,
                   /*accumulate=*/true);
    }
  }
}

}  // namespace espalier
