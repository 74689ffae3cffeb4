#include "ops/program/unchanged_parameters.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "ops/graph/graph_proto.h"
#include "ops/program/buffer_accesses.h"
#include "ops/tensor/shape.h"

namespace espalier {
namespace {

// Operands of a batch_norm that its kernel moves in place: AccessesOf does not list these as
// written. Of other operators, such operands are no parameters (ops/schema/op_def.h).
constexpr char kBatchNorm[] = "batch_norm";
constexpr int kRunningMean = 3, kRunningVariance = 4;

std::vector<int> WrittenBy(const v1::Instruction& instruction) {
  std::vector<int> written;
  for (const BufferAccess& access : AccessesOf(instruction)) {
    if (access.writes) written.push_back(access.buffer);
  }
  if (!instruction.has_compute() || instruction.compute().op() != kBatchNorm) return written;
  const auto& inputs = instruction.compute().inputs();
  for (const int i : {kRunningMean, kRunningVariance}) {
    if (i < inputs.size() && inputs[i] >= 0) written.push_back(inputs[i]);
  }
  return written;
}

}  // namespace

std::vector<bool> UnchangedParameters(const v1::Program& program) {
  const auto memory_of = [&](int i) {
    const v1::Buffer& buffer = program.buffers(i);
    const auto& dims = buffer.spec().dims();
    const TensorType type{FromProto(buffer.spec().dtype()), Dims(dims.begin(), dims.end())};
    return std::pair(buffer.offset_bytes(), buffer.offset_bytes() + type.bytes());
  };
  const auto is_parameter = [&](int i) { return program.buffers(i).kind() == v1::PARAMETER_SHARD; };
  std::vector<bool> unchanged(static_cast<size_t>(program.buffers_size()));
  for (int i = 0; i < program.buffers_size(); ++i) unchanged[i] = is_parameter(i);
  std::vector<std::pair<int64_t, int64_t>> written;
  for (const v1::Instruction& instruction : program.instructions()) {
    for (const int i : WrittenBy(instruction)) {
      if (is_parameter(i)) written.push_back(memory_of(i));
      unchanged[i] = false;
    }
  }
  // Buffers may be views of the same memory, or of a part of it; nothing but parameters shares the
  // memory of parameters.
  std::sort(written.begin(), written.end());
  std::vector<std::pair<int64_t, int64_t>> regions;  // disjoint, ascending
  for (const auto& [begin, end] : written) {
    if (regions.empty() || begin >= regions.back().second) {
      regions.emplace_back(begin, end);
    } else {
      regions.back().second = std::max(regions.back().second, end);
    }
  }
  for (int i = 0; i < program.buffers_size(); ++i) {
    if (!unchanged[i]) continue;
    const auto [begin, end] = memory_of(i);
    const auto after = std::lower_bound(regions.begin(), regions.end(), std::pair(end, int64_t{0}));
    unchanged[i] = after == regions.begin() || std::prev(after)->second <= begin;
  }
  return unchanged;
}

}  // namespace espalier
