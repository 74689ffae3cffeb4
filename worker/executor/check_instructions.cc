#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "ops/graph/graph_proto.h"
#include "ops/operators/register_all.h"
#include "worker/executor/check_program_internal.h"
#include "worker/executor/streamed_parameters.h"

namespace espalier {
namespace {

const OpRegistry& Operators() {
  static const OpRegistry* operators = [] {
    auto* registry = new OpRegistry;
    RegisterAllOperators(*registry);
    return registry;
  }();
  return *operators;
}

class InstructionChecker {
 public:
  InstructionChecker(const v1::Program& program, CheckedProgram* checked)
      : program_(program), checked_(*checked), streams_(program, checked->streamed_slot) {}

  absl::Status Check(const v1::Instruction& instruction) {
    absl::Status status = CheckKind(instruction);
    return status.ok() ? streams_.Check(instruction) : status;
  }

 private:
  absl::Status CheckKind(const v1::Instruction& instruction) {
    switch (instruction.kind_case()) {
      case v1::Instruction::kCompute:
        return Compute(instruction.compute());
      case v1::Instruction::kCopy:
        return Copy(instruction.copy());
      case v1::Instruction::kFill:
        return Static(instruction.fill().buffer(), "buffer");
      case v1::Instruction::kSend:
        return Message(instruction.send().buffer(), instruction.send().peer(),
                       instruction.send().tag(), true);
      case v1::Instruction::kReceive:
        return Message(instruction.receive().buffer(), instruction.receive().peer(),
                       instruction.receive().tag(), false);
      case v1::Instruction::kCollective:
        return Collective(instruction.collective());
      case v1::Instruction::kSwapOut:
        return SwapOut(instruction.swap_out());
      case v1::Instruction::kSwapIn:
        return SwapIn(instruction.swap_in());
      case v1::Instruction::kLoadBatch:
        return LoadBatch(instruction.load_batch());
      case v1::Instruction::kReport:
        return Report(instruction.report());
      case v1::Instruction::kUpdate:
        return Update(instruction.update());
      case v1::Instruction::KIND_NOT_SET:
        break;
    }
    return BadProgram("it is of a kind that this worker does not know");
  }

  absl::Status Index(int index, const char* what, bool optional = false) const {
    if (optional && index == -1) return absl::OkStatus();
    if (index >= 0 && index < program_.buffers_size()) return absl::OkStatus();
    return BadProgram(what, " is buffer ", index, "; there are ", program_.buffers_size());
  }
  absl::Status Static(int index, const char* what) const {
    if (absl::Status s = Index(index, what); !s.ok()) return s;
    if (program_.buffers(index).dynamic() == v1::STATIC) return absl::OkStatus();
    return BadProgram(
        what, " '", program_.buffers(index).name(),
        "' is dynamic; only operators, copies, messages and collectives may touch such "
        "buffers");
  }
  // Two operands of one copy or collective may both have the dynamic length of a serving batch.
  absl::Status AlikeDynamic(int a, int b) const {
    if (program_.buffers(a).dynamic() == program_.buffers(b).dynamic()) return absl::OkStatus();
    return BadProgram("'", program_.buffers(a).name(), "' and '", program_.buffers(b).name(),
                      "' do not change their length together");
  }
  bool IsDynamic(int index) const { return program_.buffers(index).dynamic() != v1::STATIC; }
  const TensorSpec& spec(int index) const { return checked_.specs[index]; }

  absl::Status Compute(const v1::ComputeInstruction& c) const {
    if (c.op().empty()) return BadProgram("it names no operator");
    for (int i : c.inputs()) {
      if (absl::Status s = Index(i, "an input", true); !s.ok()) return s;
    }
    for (int i : c.outputs()) {
      if (absl::Status s = Index(i, "an output", true); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status Copy(const v1::CopyInstruction& c) const {
    if (absl::Status s = Index(c.source(), "source"); !s.ok()) return s;
    if (absl::Status s = Index(c.destination(), "destination"); !s.ok()) return s;
    if (absl::Status s = AlikeDynamic(c.source(), c.destination()); !s.ok()) return s;
    const TensorSpec& from = spec(c.source());
    const TensorSpec& to = spec(c.destination());
    if (from.dtype != to.dtype) {
      return BadProgram("source is ", Name(from.dtype), ", destination ", Name(to.dtype));
    }
    if (c.accumulate() && from.dtype == DType::kBool) return BadProgram("bool cannot be added");
    const int rank = static_cast<int>(from.dims.size());
    if (static_cast<int>(to.dims.size()) != rank || c.size_size() != rank ||
        c.source_start_size() != rank || c.destination_start_size() != rank) {
      return BadProgram("source ", ToString(from.dims), ", destination ", ToString(to.dims),
                        ", starts and size must have the same number of dimensions");
    }
    for (int d = 0; d < rank; ++d) {
      auto inside = [&](int64_t start, int64_t extent) {
        return start >= 0 && start <= extent && c.size(d) <= extent - start;
      };
      if (c.size(d) <= 0 || !inside(c.source_start(d), from.dims[d]) ||
          !inside(c.destination_start(d), to.dims[d])) {
        return BadProgram("dimension ", d, ": ", c.size(d), " elements from ", c.source_start(d),
                          " of ", from.dims[d], " to ", c.destination_start(d), " of ", to.dims[d]);
      }
    }
    if (IsDynamic(c.source()) && (c.size(0) != from.dims[0] || c.size(0) != to.dims[0])) {
      return BadProgram("dimension 0 is dynamic and must be copied whole");
    }
    return absl::OkStatus();
  }

  absl::Status Message(int buffer, int peer, uint64_t tag, bool send) {
    if (absl::Status s = Index(buffer, "buffer"); !s.ok()) return s;
    checked_.needs_communicator = true;
    if (peer < 0 || peer >= program_.world_size() || peer == program_.rank()) {
      return BadProgram("peer ", peer, " of rank ", program_.rank(), " of ", program_.world_size());
    }
    if (!messages_.insert({send, peer, tag}).second) {
      return BadProgram("tag ", tag, " is used twice for peer ", peer);
    }
    return absl::OkStatus();
  }

  absl::Status Collective(const v1::CollectiveInstruction& c) {
    checked_.needs_communicator = true;
    if (c.group() < 0 || c.group() >= program_.groups_size()) {
      return BadProgram("group ", c.group(), "; there are ", program_.groups_size());
    }
    const v1::Group& group = program_.groups(c.group());
    if (std::find(group.ranks().begin(), group.ranks().end(), program_.rank()) ==
        group.ranks().end()) {
      return BadProgram("rank ", program_.rank(), " is not in group ", c.group());
    }
    if (absl::Status s = Index(c.input(), "input"); !s.ok()) return s;
    if (absl::Status s = Index(c.output(), "output"); !s.ok()) return s;
    if (absl::Status s = AlikeDynamic(c.input(), c.output()); !s.ok()) return s;
    // The other ranks' parts would not be contiguous.
    if (IsDynamic(c.input()) && c.kind() != v1::CollectiveInstruction::ALL_REDUCE &&
        c.kind() != v1::CollectiveInstruction::BROADCAST) {
      return BadProgram("'", program_.buffers(c.input()).name(),
                        "' is dynamic; only an all-reduce or a broadcast may move such a buffer");
    }
    const TensorSpec& in = spec(c.input());
    const TensorSpec& out = spec(c.output());
    if (in.dtype != out.dtype) {
      return BadProgram("input is ", Name(in.dtype), ", output ", Name(out.dtype));
    }
    const int64_t n = group.ranks_size(), have = in.num_elements(), made = out.num_elements();
    bool fits = false;
    switch (c.kind()) {
      case v1::CollectiveInstruction::ALL_REDUCE:
        fits = have == made && in.dtype != DType::kBool;
        break;
      case v1::CollectiveInstruction::BROADCAST:
        fits = have == made;
        break;
      case v1::CollectiveInstruction::ALL_GATHER:
        fits = made % n == 0 && have == made / n;
        break;
      case v1::CollectiveInstruction::REDUCE_SCATTER:
        fits = have % n == 0 && made == have / n && in.dtype != DType::kBool;
        break;
      case v1::CollectiveInstruction::ALL_TO_ALL:
        fits = have == made && have % n == 0;
        break;
      default:
        return BadProgram("it is of no known kind");
    }
    if (!fits) {
      return BadProgram("input ", ToString(in.type()), " and output ", ToString(out.type()),
                        " do not fit a group of ", n);
    }
    return absl::OkStatus();
  }

  absl::Status SwapOut(const v1::SwapInstruction& c) {
    if (absl::Status s = Static(c.buffer(), "buffer"); !s.ok()) return s;
    if (c.host_slot() < 0 || c.host_slot() >= kMaxHostSlots) {
      return BadProgram("host slot ", c.host_slot());
    }
    GrowSlot(c.host_slot(), spec(c.buffer()).bytes());
    return absl::OkStatus();
  }

  absl::Status SwapIn(const v1::SwapInstruction& c) {
    if (absl::Status s = Static(c.buffer(), "buffer"); !s.ok()) return s;
    if (checked_.streamed_slot[c.buffer()] >= 0) {
      GrowSlot(checked_.streamed_slot[c.buffer()], spec(c.buffer()).bytes());
      return absl::OkStatus();
    }
    if (c.host_slot() < 0 || c.host_slot() >= static_cast<int>(checked_.host_slot_bytes.size()) ||
        checked_.host_slot_bytes[c.host_slot()] < spec(c.buffer()).bytes()) {
      return BadProgram("host slot ", c.host_slot(), " was not written by a swap_out before");
    }
    return absl::OkStatus();
  }

  void GrowSlot(int slot, int64_t bytes) {
    if (slot >= static_cast<int>(checked_.host_slot_bytes.size())) {
      checked_.host_slot_bytes.resize(slot + 1, 0);
    }
    checked_.host_slot_bytes[slot] = std::max(checked_.host_slot_bytes[slot], bytes);
  }

  absl::Status LoadBatch(const v1::LoadBatchInstruction& c) {
    if (absl::Status s = Static(c.buffer(), "buffer"); !s.ok()) return s;
    checked_.needs_source = true;
    if (program_.buffers(c.buffer()).kind() != v1::HOST_INPUT) {
      return BadProgram("buffer '", program_.buffers(c.buffer()).name(), "' is no input");
    }
    if (spec(c.buffer()).dims.empty()) return BadProgram("a batch has at least one dimension");
    return absl::OkStatus();
  }

  absl::Status Report(const v1::ReportInstruction& c) const {
    if (absl::Status s = Static(c.buffer(), "buffer"); !s.ok()) return s;
    const TensorSpec& s = spec(c.buffer());
    if (s.dtype != DType::kF32 || s.num_elements() != 1) {
      return BadProgram("'", c.name(), "' is ", ToString(s.type()), "; a report is one f32");
    }
    return absl::OkStatus();
  }

  // Update kernels trust the operator's definition, which is checked on the whole tensors; the
  // shards must be alike.
  absl::Status Update(const v1::UpdateInstruction& c) const {
    if (absl::Status s = Static(c.parameter(), "parameter"); !s.ok()) return s;
    if (absl::Status s = Static(c.gradient(), "gradient"); !s.ok()) return s;
    const TensorSpec& parameter = spec(c.parameter());
    // Regions of a parameter that is kept whole are scratch.
    const v1::BufferKind kind = program_.buffers(c.parameter()).kind();
    if (kind != v1::PARAMETER_SHARD && kind != v1::SCRATCH) {
      return BadProgram("buffer '", program_.buffers(c.parameter()).name(), "' is no parameter");
    }
    if (spec(c.gradient()).dims != parameter.dims) {
      return BadProgram("gradient ", ToString(spec(c.gradient()).type()), " of parameter ",
                        ToString(parameter.type()));
    }
    const OpDef* def = Operators().Find(c.op());
    if (def == nullptr) return BadProgram("there is no operator '", c.op(), "'");
    if (!program_.has_optimizer()) return BadProgram("the program has no optimizer");
    absl::StatusOr<Attributes> attributes = AttributesFromProto(c.attributes());
    if (!attributes.ok()) return attributes.status();
    NodeTypes types{*std::move(attributes), {}, {}};
    const TensorType whole{parameter.dtype, parameter.global};
    types.inputs = {whole, {spec(c.gradient()).dtype, parameter.global}, {}, {DType::kF32, {2}}};
    if (absl::Status s = Static(c.hyper(), "hyper"); !s.ok()) return s;
    types.inputs[3] = spec(c.hyper()).type();
    if (absl::Status s = Index(c.scale(), "scale", true); !s.ok()) return s;
    if (c.scale() >= 0) types.inputs[2] = spec(c.scale()).type();
    for (int state : c.state()) {
      if (state == -1) {
        types.inputs.emplace_back();
        continue;
      }
      if (absl::Status s = Static(state, "state"); !s.ok()) return s;
      const TensorSpec& kept = spec(state);
      const bool alike = kept.global == parameter.global && kept.dims == parameter.dims &&
                         kept.offset == parameter.offset;
      if (!alike && kept.dims != kept.global) {
        return BadProgram("state '", program_.buffers(state).name(), "' is ", ToString(kept.type()),
                          ", neither whole nor like the shard of parameter ",
                          ToString(parameter.type()));
      }
      types.inputs.push_back({kept.dtype, kept.global});
    }
    for (int sum : c.sums()) {
      if (absl::Status s = Static(sum, "sum"); !s.ok()) return s;
      types.inputs.push_back(spec(sum).type());
    }
    if (absl::Status s = InferNode(*def, &types); !s.ok()) return s;
    if (c.has_result()) {
      if (absl::Status s = Static(c.result(), "result"); !s.ok()) return s;
      if (!(spec(c.result()).type() == types.outputs[0])) {
        return BadProgram("result is ", ToString(spec(c.result()).type()), "; ", c.op(), " gives ",
                          ToString(types.outputs[0]));
      }
    } else if (!(types.outputs[0] == whole) || !def->update.has_value()) {
      return BadProgram("'", c.op(), "' does not move a parameter");
    }
    return absl::OkStatus();
  }

  const v1::Program& program_;
  CheckedProgram& checked_;
  std::set<std::tuple<bool, int, uint64_t>> messages_;
  StreamedParameterChecker streams_;
};

}  // namespace

absl::Status CheckInstructions(const v1::Program& program, CheckedProgram* checked) {
  InstructionChecker checker(program, checked);
  for (int i = 0; i < program.instructions_size(); ++i) {
    if (absl::Status s = checker.Check(program.instructions(i)); !s.ok()) {
      return BadProgram(Describe(program, i), ": ", std::string(s.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace espalier
