#include "worker/executor/check.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "ops/operators/register_all.h"
#include "ops/optimizer/schedule.h"
#include "ops/tensor/stretch.h"
#include "worker/executor/streams.h"

namespace espalier {
namespace {

constexpr int kMaxRank = 8;
constexpr int64_t kMaxHostSlots = 1 << 20;

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::StatusOr<TensorSpec> SpecOf(const proto::TensorSpec& message) {
  TensorSpec spec;
  spec.dtype = FromProto(message.dtype());
  if (spec.dtype == DType::kInvalid) return Bad("it has no element type");
  spec.dims.assign(message.dims().begin(), message.dims().end());
  spec.offset.assign(message.offset().begin(), message.offset().end());
  spec.global.assign(message.global().begin(), message.global().end());
  const size_t rank = spec.dims.size();
  if (rank > kMaxRank) return Bad("it has ", rank, " dimensions; at most ", kMaxRank);
  if (spec.offset.empty()) spec.offset.assign(rank, 0);
  if (spec.global.empty()) spec.global = spec.dims;
  if (spec.offset.size() != rank || spec.global.size() != rank) {
    return Bad("dims, offset and global have ", rank, ", ", spec.offset.size(), " and ",
               spec.global.size(), " entries; they must be as many");
  }
  int64_t bytes = static_cast<int64_t>(SizeOf(spec.dtype)), whole = bytes;
  for (size_t d = 0; d < rank; ++d) {
    if (spec.dims[d] <= 0) return Bad("dimension ", d, " is ", spec.dims[d]);
    if (spec.global[d] <= 0 || spec.offset[d] < 0 || spec.offset[d] > spec.global[d] ||
        spec.dims[d] > spec.global[d] - spec.offset[d]) {
      return Bad("dimension ", d, " is [", spec.offset[d], ", ", spec.offset[d], " + ",
                 spec.dims[d], ") of ", spec.global[d]);
    }
    if (__builtin_mul_overflow(bytes, spec.dims[d], &bytes) ||
        __builtin_mul_overflow(whole, spec.global[d], &whole)) {
      return Bad("its size overflows");
    }
  }
  return spec;
}

const OpRegistry& Operators() {
  static const OpRegistry* operators = [] {
    auto* registry = new OpRegistry;
    RegisterAllOperators(*registry);
    return registry;
  }();
  return *operators;
}

bool IsKept(proto::BufferKind kind) {
  return kind != proto::SCRATCH && kind != proto::HOST_INPUT && kind != proto::SCHEDULE;
}

std::vector<int> FindAliases(const proto::Program& program, const CheckedProgram& checked) {
  std::map<std::tuple<int64_t, int64_t, int>, int> first;
  std::vector<int> alias_of(checked.specs.size(), -1);
  for (int i = 0; i < program.buffers_size(); ++i) {
    const proto::Buffer& buffer = program.buffers(i);
    if (!IsKept(buffer.kind()) || checked.home_slot[i] >= 0) continue;
    auto [it, added] = first.try_emplace(
        {buffer.offset_bytes(), checked.specs[i].bytes(), static_cast<int>(buffer.kind())}, i);
    if (!added) alias_of[i] = it->second;
  }
  return alias_of;
}

std::vector<std::string> FindTensorNames(const proto::Program& program) {
  std::set<std::pair<int, std::string>> names;
  for (const proto::Buffer& buffer : program.buffers()) {
    names.emplace(buffer.kind(), buffer.name());
  }
  std::vector<std::string> result;
  for (const proto::Buffer& buffer : program.buffers()) {
    std::string name = buffer.name();
    const size_t mark = name.rfind('#');
    if (mark != std::string::npos && mark + 1 < name.size() &&
        name.find_first_not_of("0123456789", mark + 1) == std::string::npos &&
        names.count({buffer.kind(), name.substr(0, mark)}) > 0) {
      name.resize(mark);
    }
    result.push_back(std::move(name));
  }
  return result;
}

// Whether shard `a` of a parameter is, by region and by place, a stretch of shard `b`.
bool LiesIn(const proto::Program& program, const std::vector<TensorSpec>& specs, int a, int b) {
  if (specs[a].dtype != specs[b].dtype || specs[a].global != specs[b].global) return false;
  const std::optional<int64_t> begin =
      StretchBegin({specs[a].offset, specs[a].dims}, {specs[b].offset, specs[b].dims});
  int64_t place = 0;
  return begin.has_value() &&
         !__builtin_add_overflow(program.buffers(b).offset_bytes(),
                                 *begin * static_cast<int64_t>(SizeOf(specs[a].dtype)), &place) &&
         place == program.buffers(a).offset_bytes();
}

// Regions of parameters that an update moves by themselves, though the parameter is kept whole.
void FindStretches(const proto::Program& program, CheckedProgram* checked) {
  std::map<std::string, std::vector<int>> shards;  // by tensor
  for (int i = 0; i < program.buffers_size(); ++i) {
    if (program.buffers(i).kind() != proto::PARAMETER_SHARD || checked->alias_of[i] >= 0 ||
        checked->home_slot[i] >= 0) {
      continue;
    }
    std::vector<int>& earlier = shards[checked->tensor_names[i]];
    const auto found = std::find_if(earlier.begin(), earlier.end(),
                                    [&](int j) { return LiesIn(program, checked->specs, i, j); });
    if (found == earlier.end()) {
      earlier.push_back(i);
    } else {
      checked->alias_of[i] = *found;
    }
  }
}

absl::Status CheckBuffer(const proto::Program& program, const proto::Buffer& buffer,
                         const TensorSpec& spec, bool is_alias) {
  if (!proto::BufferKind_IsValid(buffer.kind()) ||
      buffer.kind() == proto::BUFFER_KIND_UNSPECIFIED) {
    return Bad("it has no kind");
  }
  if (buffer.offset_bytes() < 0 || buffer.offset_bytes() % 64 != 0) {
    return Bad("its offset ", buffer.offset_bytes(), " is not a multiple of 64");
  }
  if (buffer.offset_bytes() > program.arena_bytes() ||
      spec.bytes() > program.arena_bytes() - buffer.offset_bytes()) {
    return Bad("it ends at ", buffer.offset_bytes(), " + ", spec.bytes(), ", beyond the arena of ",
               program.arena_bytes(), " bytes");
  }
  const int64_t whole = NumElements(spec.global) * static_cast<int64_t>(SizeOf(spec.dtype));
  const int64_t literal = static_cast<int64_t>(buffer.literal().size());
  if (buffer.kind() == proto::LITERAL && !is_alias && literal != spec.bytes()) {
    return Bad("its literal has ", literal, " bytes; ", ToString(spec.type()), " takes ",
               spec.bytes());
  }
  if (buffer.kind() == proto::PARAMETER_SHARD && literal != 0 && literal != whole) {
    return Bad("its literal has ", literal, " bytes; the whole tensor has ", whole);
  }
  if (buffer.kind() == proto::SCHEDULE && !(spec == TensorSpec::Whole({DType::kF32, {2}}))) {
    return Bad("it is ", ToString(spec.type()), "; the schedule is f32[2]");
  }
  if (buffer.dynamic() != proto::STATIC) {
    if (!proto::DynamicDimension_IsValid(buffer.dynamic())) return Bad("unknown dynamic dimension");
    if (spec.dims.empty()) return Bad("a scalar cannot have a dynamic dimension");
    if (buffer.kind() != proto::SCRATCH && buffer.kind() != proto::HOST_INPUT) {
      return Bad("only scratch and input buffers can be dynamic");
    }
  }
  return absl::OkStatus();
}

// What outlives a step must not share memory with anything.
absl::Status CheckOverlaps(const proto::Program& program, const CheckedProgram& checked) {
  const std::vector<TensorSpec>& specs = checked.specs;
  std::vector<int> order;
  for (int i = 0; i < program.buffers_size(); ++i) {
    if (checked.alias_of[i] < 0) order.push_back(i);
  }
  auto begin = [&](int i) { return program.buffers(i).offset_bytes(); };
  std::sort(order.begin(), order.end(), [&](int a, int b) { return begin(a) < begin(b); });
  int64_t end_any = 0, end_kept = 0;
  int last_any = -1, last_kept = -1;
  for (int i : order) {
    const bool kept = IsKept(program.buffers(i).kind()) && checked.home_slot[i] < 0;
    const int other = begin(i) < end_kept ? last_kept : kept && begin(i) < end_any ? last_any : -1;
    if (other >= 0) {
      return Bad("buffers '", program.buffers(other).name(), "' and '", program.buffers(i).name(),
                 "' share memory, but one of them is kept between steps");
    }
    const int64_t end = begin(i) + specs[i].bytes();
    if (end > end_any) end_any = end, last_any = i;
    if (kept && end > end_kept) end_kept = end, last_kept = i;
  }
  return absl::OkStatus();
}

class InstructionChecker {
 public:
  InstructionChecker(const proto::Program& program, CheckedProgram* checked)
      : program_(program), checked_(*checked), streams_(program, checked->home_slot) {}

  absl::Status Check(const proto::Instruction& instruction) {
    absl::Status status = CheckKind(instruction);
    return status.ok() ? streams_.Check(instruction) : status;
  }

 private:
  absl::Status CheckKind(const proto::Instruction& instruction) {
    switch (instruction.kind_case()) {
      case proto::Instruction::kCompute:
        return Compute(instruction.compute());
      case proto::Instruction::kCopy:
        return Copy(instruction.copy());
      case proto::Instruction::kFill:
        return Static(instruction.fill().buffer(), "buffer");
      case proto::Instruction::kSend:
        return Message(instruction.send().buffer(), instruction.send().peer(),
                       instruction.send().tag(), true);
      case proto::Instruction::kReceive:
        return Message(instruction.receive().buffer(), instruction.receive().peer(),
                       instruction.receive().tag(), false);
      case proto::Instruction::kCollective:
        return Collective(instruction.collective());
      case proto::Instruction::kSwapOut:
        return SwapOut(instruction.swap_out());
      case proto::Instruction::kSwapIn:
        return SwapIn(instruction.swap_in());
      case proto::Instruction::kLoadBatch:
        return LoadBatch(instruction.load_batch());
      case proto::Instruction::kReport:
        return Report(instruction.report());
      case proto::Instruction::kUpdate:
        return Update(instruction.update());
      case proto::Instruction::KIND_NOT_SET:
        break;
    }
    return Bad("it is of a kind that this worker does not know");
  }

  absl::Status Index(int index, const char* what, bool optional = false) const {
    if (optional && index == -1) return absl::OkStatus();
    if (index >= 0 && index < program_.buffers_size()) return absl::OkStatus();
    return Bad(what, " is buffer ", index, "; there are ", program_.buffers_size());
  }
  absl::Status Static(int index, const char* what) const {
    if (absl::Status s = Index(index, what); !s.ok()) return s;
    if (program_.buffers(index).dynamic() == proto::STATIC) return absl::OkStatus();
    return Bad(what, " '", program_.buffers(index).name(),
               "' is dynamic; only operators, copies, messages and collectives may touch such "
               "buffers");
  }
  // Of two operands of one copy or collective: in serving both may be as long as the batch.
  absl::Status AlikeDynamic(int a, int b) const {
    if (program_.buffers(a).dynamic() == program_.buffers(b).dynamic()) return absl::OkStatus();
    return Bad("'", program_.buffers(a).name(), "' and '", program_.buffers(b).name(),
               "' do not change their length together");
  }
  bool IsDynamic(int index) const { return program_.buffers(index).dynamic() != proto::STATIC; }
  const TensorSpec& spec(int index) const { return checked_.specs[index]; }

  absl::Status Compute(const proto::ComputeInstruction& c) const {
    if (c.op().empty()) return Bad("it names no operator");
    for (int i : c.inputs()) {
      if (absl::Status s = Index(i, "an input", true); !s.ok()) return s;
    }
    for (int i : c.outputs()) {
      if (absl::Status s = Index(i, "an output", true); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status Copy(const proto::CopyInstruction& c) const {
    if (absl::Status s = Index(c.source(), "source"); !s.ok()) return s;
    if (absl::Status s = Index(c.destination(), "destination"); !s.ok()) return s;
    if (absl::Status s = AlikeDynamic(c.source(), c.destination()); !s.ok()) return s;
    const TensorSpec& from = spec(c.source());
    const TensorSpec& to = spec(c.destination());
    if (from.dtype != to.dtype) {
      return Bad("source is ", Name(from.dtype), ", destination ", Name(to.dtype));
    }
    if (c.accumulate() && from.dtype == DType::kBool) return Bad("bool cannot be added");
    const int rank = static_cast<int>(from.dims.size());
    if (static_cast<int>(to.dims.size()) != rank || c.size_size() != rank ||
        c.source_start_size() != rank || c.destination_start_size() != rank) {
      return Bad("source ", ToString(from.dims), ", destination ", ToString(to.dims),
                 ", starts and size must have the same number of dimensions");
    }
    for (int d = 0; d < rank; ++d) {
      auto inside = [&](int64_t start, int64_t extent) {
        return start >= 0 && start <= extent && c.size(d) <= extent - start;
      };
      if (c.size(d) <= 0 || !inside(c.source_start(d), from.dims[d]) ||
          !inside(c.destination_start(d), to.dims[d])) {
        return Bad("dimension ", d, ": ", c.size(d), " elements from ", c.source_start(d), " of ",
                   from.dims[d], " to ", c.destination_start(d), " of ", to.dims[d]);
      }
    }
    if (IsDynamic(c.source()) && (c.size(0) != from.dims[0] || c.size(0) != to.dims[0])) {
      return Bad("dimension 0 is dynamic and must be copied whole");
    }
    return absl::OkStatus();
  }

  absl::Status Message(int buffer, int peer, uint64_t tag, bool send) {
    if (absl::Status s = Index(buffer, "buffer"); !s.ok()) return s;
    checked_.needs_communicator = true;
    if (peer < 0 || peer >= program_.world_size() || peer == program_.rank()) {
      return Bad("peer ", peer, " of rank ", program_.rank(), " of ", program_.world_size());
    }
    if (!messages_.insert({send, peer, tag}).second) {
      return Bad("tag ", tag, " is used twice for peer ", peer);
    }
    return absl::OkStatus();
  }

  absl::Status Collective(const proto::CollectiveInstruction& c) {
    checked_.needs_communicator = true;
    if (c.group() < 0 || c.group() >= program_.groups_size()) {
      return Bad("group ", c.group(), "; there are ", program_.groups_size());
    }
    const proto::Group& group = program_.groups(c.group());
    if (std::find(group.ranks().begin(), group.ranks().end(), program_.rank()) ==
        group.ranks().end()) {
      return Bad("rank ", program_.rank(), " is not in group ", c.group());
    }
    if (absl::Status s = Index(c.input(), "input"); !s.ok()) return s;
    if (absl::Status s = Index(c.output(), "output"); !s.ok()) return s;
    if (absl::Status s = AlikeDynamic(c.input(), c.output()); !s.ok()) return s;
    // The parts of the others would not follow each other in memory.
    if (IsDynamic(c.input()) && c.kind() != proto::CollectiveInstruction::ALL_REDUCE &&
        c.kind() != proto::CollectiveInstruction::BROADCAST) {
      return Bad("'", program_.buffers(c.input()).name(),
                 "' is dynamic; only an all-reduce or a broadcast may move such a buffer");
    }
    const TensorSpec& in = spec(c.input());
    const TensorSpec& out = spec(c.output());
    if (in.dtype != out.dtype) {
      return Bad("input is ", Name(in.dtype), ", output ", Name(out.dtype));
    }
    const int64_t n = group.ranks_size(), have = in.num_elements(), made = out.num_elements();
    bool fits = false;
    switch (c.kind()) {
      case proto::CollectiveInstruction::ALL_REDUCE:
        fits = have == made && in.dtype != DType::kBool;
        break;
      case proto::CollectiveInstruction::BROADCAST:
        fits = have == made;
        break;
      case proto::CollectiveInstruction::ALL_GATHER:
        fits = made % n == 0 && have == made / n;
        break;
      case proto::CollectiveInstruction::REDUCE_SCATTER:
        fits = have % n == 0 && made == have / n && in.dtype != DType::kBool;
        break;
      case proto::CollectiveInstruction::ALL_TO_ALL:
        fits = have == made && have % n == 0;
        break;
      default:
        return Bad("it is of no known kind");
    }
    if (!fits) {
      return Bad("input ", ToString(in.type()), " and output ", ToString(out.type()),
                 " do not fit a group of ", n);
    }
    return absl::OkStatus();
  }

  absl::Status SwapOut(const proto::SwapInstruction& c) {
    if (absl::Status s = Static(c.buffer(), "buffer"); !s.ok()) return s;
    if (c.host_slot() < 0 || c.host_slot() >= kMaxHostSlots) {
      return Bad("host slot ", c.host_slot());
    }
    GrowSlot(c.host_slot(), spec(c.buffer()).bytes());
    return absl::OkStatus();
  }

  absl::Status SwapIn(const proto::SwapInstruction& c) {
    if (absl::Status s = Static(c.buffer(), "buffer"); !s.ok()) return s;
    if (checked_.home_slot[c.buffer()] >= 0) {
      GrowSlot(checked_.home_slot[c.buffer()], spec(c.buffer()).bytes());
      return absl::OkStatus();
    }
    if (c.host_slot() < 0 || c.host_slot() >= static_cast<int>(checked_.host_slot_bytes.size()) ||
        checked_.host_slot_bytes[c.host_slot()] < spec(c.buffer()).bytes()) {
      return Bad("host slot ", c.host_slot(), " was not written by a swap_out before");
    }
    return absl::OkStatus();
  }

  void GrowSlot(int slot, int64_t bytes) {
    if (slot >= static_cast<int>(checked_.host_slot_bytes.size())) {
      checked_.host_slot_bytes.resize(slot + 1, 0);
    }
    checked_.host_slot_bytes[slot] = std::max(checked_.host_slot_bytes[slot], bytes);
  }

  absl::Status LoadBatch(const proto::LoadBatchInstruction& c) {
    if (absl::Status s = Static(c.buffer(), "buffer"); !s.ok()) return s;
    checked_.needs_source = true;
    if (program_.buffers(c.buffer()).kind() != proto::HOST_INPUT) {
      return Bad("buffer '", program_.buffers(c.buffer()).name(), "' is no input");
    }
    if (spec(c.buffer()).dims.empty()) return Bad("a batch has at least one dimension");
    return absl::OkStatus();
  }

  absl::Status Report(const proto::ReportInstruction& c) const {
    if (absl::Status s = Static(c.buffer(), "buffer"); !s.ok()) return s;
    const TensorSpec& s = spec(c.buffer());
    if (s.dtype != DType::kF32 || s.num_elements() != 1) {
      return Bad("'", c.name(), "' is ", ToString(s.type()), "; a report is one f32");
    }
    return absl::OkStatus();
  }

  // Kernels of updates trust the operator's definition: it is asked about the whole tensors, and
  // the shards must be alike.
  absl::Status Update(const proto::UpdateInstruction& c) const {
    if (absl::Status s = Static(c.parameter(), "parameter"); !s.ok()) return s;
    if (absl::Status s = Static(c.gradient(), "gradient"); !s.ok()) return s;
    const TensorSpec& parameter = spec(c.parameter());
    // Pieces of a parameter that is kept whole are scratch.
    const proto::BufferKind kind = program_.buffers(c.parameter()).kind();
    if (kind != proto::PARAMETER_SHARD && kind != proto::SCRATCH) {
      return Bad("buffer '", program_.buffers(c.parameter()).name(), "' is no parameter");
    }
    if (spec(c.gradient()).dims != parameter.dims) {
      return Bad("gradient ", ToString(spec(c.gradient()).type()), " of parameter ",
                 ToString(parameter.type()));
    }
    const OpDef* def = Operators().Find(c.op());
    if (def == nullptr) return Bad("there is no operator '", c.op(), "'");
    if (!program_.has_optimizer()) return Bad("the program has no optimiser");
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
        return Bad("state '", program_.buffers(state).name(), "' is ", ToString(kept.type()),
                   ", neither whole nor like the shard of parameter ", ToString(parameter.type()));
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
        return Bad("result is ", ToString(spec(c.result()).type()), "; ", c.op(), " gives ",
                   ToString(types.outputs[0]));
      }
    } else if (!(types.outputs[0] == whole) || !def->update.has_value()) {
      return Bad("'", c.op(), "' does not move a parameter");
    }
    return absl::OkStatus();
  }

  const proto::Program& program_;
  CheckedProgram& checked_;
  std::set<std::tuple<bool, int, uint64_t>> messages_;
  StreamChecker streams_;
};

}  // namespace

std::string OpName(const proto::Instruction& instruction) {
  switch (instruction.kind_case()) {
    case proto::Instruction::kCompute:
      return instruction.compute().op();
    case proto::Instruction::kCopy:
      return "copy";
    case proto::Instruction::kFill:
      return "fill";
    case proto::Instruction::kSend:
      return "send";
    case proto::Instruction::kReceive:
      return "receive";
    case proto::Instruction::kCollective:
      switch (instruction.collective().kind()) {
        case proto::CollectiveInstruction::ALL_REDUCE:
          return "all_reduce";
        case proto::CollectiveInstruction::ALL_GATHER:
          return "all_gather";
        case proto::CollectiveInstruction::REDUCE_SCATTER:
          return "reduce_scatter";
        case proto::CollectiveInstruction::ALL_TO_ALL:
          return "all_to_all";
        case proto::CollectiveInstruction::BROADCAST:
          return "broadcast";
        default:
          return "collective";
      }
    case proto::Instruction::kSwapOut:
      return "swap_out";
    case proto::Instruction::kSwapIn:
      return "swap_in";
    case proto::Instruction::kLoadBatch:
      return "load_batch";
    case proto::Instruction::kReport:
      return "report";
    case proto::Instruction::kUpdate:
      return "update";
    case proto::Instruction::KIND_NOT_SET:
      break;
  }
  return "unknown";
}

std::string Describe(const proto::Program& program, int instruction) {
  const proto::Instruction& i = program.instructions(instruction);
  return absl::StrCat("instruction ", instruction, " (", OpName(i), " of '", i.node(), "')");
}

absl::StatusOr<CheckedProgram> CheckProgram(const proto::Program& program) {
  const std::string name = absl::StrCat("program '", program.name(), "': ");
  if (program.format_version() != 1) {
    return Bad(name, "format version ", program.format_version(), "; this worker reads 1");
  }
  if (program.world_size() < 1 || program.rank() < 0 || program.rank() >= program.world_size()) {
    return Bad(name, "rank ", program.rank(), " of ", program.world_size());
  }
  if (program.arena_bytes() < 0) return Bad(name, "an arena of ", program.arena_bytes(), " bytes");
  for (int g = 0; g < program.groups_size(); ++g) {
    int previous = -1;
    for (int rank : program.groups(g).ranks()) {
      if (rank <= previous || rank >= program.world_size()) {
        return Bad(name, "group ", g, " must hold ascending ranks below ", program.world_size());
      }
      previous = rank;
    }
    if (previous < 0) return Bad(name, "group ", g, " is empty");
  }
  if (absl::Status s = CheckSchedule(program.optimizer().learning_rate()); !s.ok()) {
    return Bad(name, std::string(s.message()));
  }
  CheckedProgram checked;
  auto place = [&](int i, const absl::Status& status) {
    return Bad(name, "buffer ", i, " ('", program.buffers(i).name(),
               "'): ", std::string(status.message()));
  };
  for (int i = 0; i < program.buffers_size(); ++i) {
    absl::StatusOr<TensorSpec> spec = SpecOf(program.buffers(i).spec());
    if (!spec.ok()) return place(i, spec.status());
    checked.specs.push_back(*std::move(spec));
  }
  checked.home_slot = FindHomeSlots(program, kMaxHostSlots);
  checked.alias_of = FindAliases(program, checked);
  checked.tensor_names = FindTensorNames(program);
  FindStretches(program, &checked);
  for (int i = 0; i < program.buffers_size(); ++i) {
    absl::Status status =
        CheckBuffer(program, program.buffers(i), checked.specs[i], checked.alias_of[i] >= 0);
    if (!status.ok()) return place(i, status);
  }
  if (absl::Status s = CheckOverlaps(program, checked); !s.ok()) {
    return Bad(name, std::string(s.message()));
  }
  InstructionChecker checker(program, &checked);
  for (int i = 0; i < program.instructions_size(); ++i) {
    if (absl::Status s = checker.Check(program.instructions(i)); !s.ok()) {
      return Bad(name, Describe(program, i), ": ", std::string(s.message()));
    }
  }
  for (const auto& [output, buffer] : program.outputs()) {
    if (buffer < 0 || buffer >= program.buffers_size()) {
      return Bad(name, "output '", output, "' is buffer ", buffer, "; there are ",
                 program.buffers_size());
    }
  }
  return checked;
}

}  // namespace espalier
