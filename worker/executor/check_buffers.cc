#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/graph/graph_proto.h"
#include "ops/program/tensor_names.h"
#include "ops/tensor/contiguous.h"
#include "worker/executor/check_program_internal.h"
#include "worker/executor/streamed_parameters.h"

namespace espalier {
namespace {

constexpr int kMaxRank = 8;

absl::StatusOr<TensorSpec> SpecOf(const v1::TensorSpec& message) {
  TensorSpec spec;
  spec.dtype = FromProto(message.dtype());
  if (spec.dtype == DType::kInvalid) return BadProgram("it has no element type");
  spec.dims.assign(message.dims().begin(), message.dims().end());
  spec.offset.assign(message.offset().begin(), message.offset().end());
  spec.global.assign(message.global().begin(), message.global().end());
  const size_t rank = spec.dims.size();
  if (rank > kMaxRank) return BadProgram("it has ", rank, " dimensions; at most ", kMaxRank);
  if (spec.offset.empty()) spec.offset.assign(rank, 0);
  if (spec.global.empty()) spec.global = spec.dims;
  if (spec.offset.size() != rank || spec.global.size() != rank) {
    return BadProgram("dims, offset and global have ", rank, ", ", spec.offset.size(), " and ",
                      spec.global.size(), " entries; they must be as many");
  }
  int64_t bytes = static_cast<int64_t>(SizeOf(spec.dtype)), whole = bytes;
  for (size_t d = 0; d < rank; ++d) {
    if (spec.dims[d] <= 0) return BadProgram("dimension ", d, " is ", spec.dims[d]);
    if (spec.global[d] <= 0 || spec.offset[d] < 0 || spec.offset[d] > spec.global[d] ||
        spec.dims[d] > spec.global[d] - spec.offset[d]) {
      return BadProgram("dimension ", d, " is [", spec.offset[d], ", ", spec.offset[d], " + ",
                        spec.dims[d], ") of ", spec.global[d]);
    }
    if (__builtin_mul_overflow(bytes, spec.dims[d], &bytes) ||
        __builtin_mul_overflow(whole, spec.global[d], &whole)) {
      return BadProgram("its size overflows");
    }
  }
  return spec;
}

bool IsKeptKind(v1::BufferKind kind) {
  return kind != v1::SCRATCH && kind != v1::HOST_INPUT && kind != v1::SCHEDULE;
}

std::vector<int> FindAliases(const v1::Program& program, const CheckedProgram& checked) {
  std::map<std::tuple<int64_t, int64_t, int>, int> first;
  std::vector<int> alias_of(checked.specs.size(), -1);
  for (int i = 0; i < program.buffers_size(); ++i) {
    const v1::Buffer& buffer = program.buffers(i);
    if (!IsKeptKind(buffer.kind()) || checked.streamed_slot[i] >= 0) continue;
    auto [it, added] = first.try_emplace(
        {buffer.offset_bytes(), checked.specs[i].bytes(), static_cast<int>(buffer.kind())}, i);
    if (!added) alias_of[i] = it->second;
  }
  return alias_of;
}

// True if shard `a` of a parameter is, in region and in address, a contiguous part of shard `b`.
bool IsContiguousIn(const v1::Program& program, const std::vector<TensorSpec>& specs, int a,
                    int b) {
  if (specs[a].dtype != specs[b].dtype || specs[a].global != specs[b].global) return false;
  const std::optional<int64_t> begin =
      ContiguousOffset({specs[a].offset, specs[a].dims}, {specs[b].offset, specs[b].dims});
  int64_t place = 0;
  return begin.has_value() &&
         !__builtin_add_overflow(program.buffers(b).offset_bytes(),
                                 *begin * static_cast<int64_t>(SizeOf(specs[a].dtype)), &place) &&
         place == program.buffers(a).offset_bytes();
}

// Regions of whole parameters that separate updates modify.
void FindContiguousShards(const v1::Program& program, CheckedProgram* checked) {
  std::map<std::string, std::vector<int>> shards;  // by tensor
  for (int i = 0; i < program.buffers_size(); ++i) {
    if (program.buffers(i).kind() != v1::PARAMETER_SHARD || checked->alias_of[i] >= 0 ||
        checked->streamed_slot[i] >= 0) {
      continue;
    }
    std::vector<int>& earlier = shards[checked->tensor_names[i]];
    const auto found = std::find_if(earlier.begin(), earlier.end(), [&](int j) {
      return IsContiguousIn(program, checked->specs, i, j);
    });
    if (found == earlier.end()) {
      earlier.push_back(i);
    } else {
      checked->alias_of[i] = *found;
    }
  }
}

absl::Status CheckBuffer(const v1::Program& program, const v1::Buffer& buffer,
                         const TensorSpec& spec, bool is_alias) {
  if (!v1::BufferKind_IsValid(buffer.kind()) || buffer.kind() == v1::BUFFER_KIND_UNSPECIFIED) {
    return BadProgram("it has no kind");
  }
  if (buffer.offset_bytes() < 0 || buffer.offset_bytes() % 64 != 0) {
    return BadProgram("its offset ", buffer.offset_bytes(), " is not a multiple of 64");
  }
  if (buffer.offset_bytes() > program.arena_bytes() ||
      spec.bytes() > program.arena_bytes() - buffer.offset_bytes()) {
    return BadProgram("it ends at ", buffer.offset_bytes(), " + ", spec.bytes(),
                      ", beyond the arena of ", program.arena_bytes(), " bytes");
  }
  const int64_t whole = NumElements(spec.global) * static_cast<int64_t>(SizeOf(spec.dtype));
  const int64_t literal = static_cast<int64_t>(buffer.literal().size());
  const bool stored = buffer.initializer().kind() == v1::Initializer::STORED;
  if (stored && buffer.kind() != v1::LITERAL && buffer.kind() != v1::PARAMETER_SHARD) {
    return BadProgram("only literals and parameters can be STORED");
  }
  if (stored && literal != 0) return BadProgram("it is STORED, but also has a literal");
  if (buffer.kind() == v1::LITERAL && !is_alias && !stored && literal != spec.bytes()) {
    return BadProgram("its literal has ", literal, " bytes; ", ToString(spec.type()), " takes ",
                      spec.bytes());
  }
  if (buffer.kind() == v1::PARAMETER_SHARD && literal != 0 && literal != whole) {
    return BadProgram("its literal has ", literal, " bytes; the whole tensor has ", whole);
  }
  if (buffer.kind() == v1::SCHEDULE && !(spec == TensorSpec::Whole({DType::kF32, {2}}))) {
    return BadProgram("it is ", ToString(spec.type()), "; the schedule is f32[2]");
  }
  if (buffer.dynamic() != v1::STATIC) {
    if (!v1::DynamicDimension_IsValid(buffer.dynamic()))
      return BadProgram("unknown dynamic dimension");
    if (spec.dims.empty()) return BadProgram("a scalar cannot have a dynamic dimension");
    if (buffer.kind() != v1::SCRATCH && buffer.kind() != v1::HOST_INPUT) {
      return BadProgram("only scratch and input buffers can be dynamic");
    }
  }
  return absl::OkStatus();
}

// Buffers kept between steps must not share memory with others.
absl::Status CheckOverlaps(const v1::Program& program, const CheckedProgram& checked) {
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
    const bool kept = IsKeptKind(program.buffers(i).kind()) && checked.streamed_slot[i] < 0;
    const int other = begin(i) < end_kept ? last_kept : kept && begin(i) < end_any ? last_any : -1;
    if (other >= 0) {
      return BadProgram("buffers '", program.buffers(other).name(), "' and '",
                        program.buffers(i).name(),
                        "' share memory, but one of them is kept between steps");
    }
    const int64_t end = begin(i) + specs[i].bytes();
    if (end > end_any) end_any = end, last_any = i;
    if (kept && end > end_kept) end_kept = end, last_kept = i;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckBuffers(const v1::Program& program, CheckedProgram* checked) {
  const auto place = [&](int i, const absl::Status& status) {
    return BadProgram("buffer ", i, " ('", program.buffers(i).name(),
                      "'): ", std::string(status.message()));
  };
  for (int i = 0; i < program.buffers_size(); ++i) {
    absl::StatusOr<TensorSpec> spec = SpecOf(program.buffers(i).spec());
    if (!spec.ok()) return place(i, spec.status());
    checked->specs.push_back(*std::move(spec));
  }
  checked->streamed_slot = FindStreamedSlots(program, kMaxHostSlots);
  checked->alias_of = FindAliases(program, *checked);
  checked->tensor_names = TensorNames(program);
  FindContiguousShards(program, checked);
  for (int i = 0; i < program.buffers_size(); ++i) {
    absl::Status status =
        CheckBuffer(program, program.buffers(i), checked->specs[i], checked->alias_of[i] >= 0);
    if (!status.ok()) return place(i, status);
  }
  return CheckOverlaps(program, *checked);
}

}  // namespace espalier
