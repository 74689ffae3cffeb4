#include "planner/lowering/program_workspace.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "ops/graph/graph_proto.h"
#include "ops/program/buffer_accesses.h"
#include "planner/memory/workspace.h"

namespace espalier {
namespace {

int64_t Estimate(const OpRegistry& registry, const RankProgram& program) {
  int64_t most = 0;
  for (const v1::Instruction& instruction : program.program().instructions()) {
    absl::string_view op = instruction.compute().op();
    absl::ConsumeSuffix(&op, "_grad");
    const OpDef* def = registry.Find(std::string(op));
    if (def == nullptr || def->precision != Precision::kNarrow) continue;
    int64_t bytes = 0;
    for (const BufferAccess& access : AccessesOf(instruction)) {
      bytes += program.spec(access.buffer).bytes();
    }
    const v1::ComputeInstruction& compute = instruction.compute();
    const int64_t weights = compute.inputs_size() > 1 ? program.spec(compute.inputs(1)).bytes() : 0;
    most = std::max(most, KernelWorkspace(op, compute.op() != op, bytes, weights));
  }
  return most;
}

// What the executor makes the instruction's kernel for; nothing if its attributes cannot be read.
std::optional<KernelSpec> KernelOf(const v1::Instruction& instruction, const RankProgram& program) {
  const bool compute = instruction.has_compute();
  absl::StatusOr<Attributes> attributes = AttributesFromProto(
      compute ? instruction.compute().attributes() : instruction.update().attributes());
  if (!attributes.ok()) return std::nullopt;
  KernelSpec kernel;
  kernel.op = compute ? instruction.compute().op() : instruction.update().op();
  kernel.attributes = *std::move(attributes);
  const KernelOperands operands = KernelOperandsOf(instruction);
  for (int b : operands.inputs) {
    kernel.inputs.push_back(b < 0 ? TensorSpec() : program.spec(b));
  }
  for (int b : operands.outputs) {
    kernel.outputs.push_back(b < 0 ? TensorSpec() : program.spec(b));
  }
  return kernel;
}

}  // namespace

ProgramWorkspace WorkspaceOf(const OpRegistry& registry, const RankProgram& program,
                             const WorkspaceQuery& query, const v1::Device& device) {
  const ProgramWorkspace estimate{Estimate(registry, program), false};
  if (query == nullptr) return estimate;
  ProgramWorkspace found{0, true};
  for (const v1::Instruction& instruction : program.program().instructions()) {
    if (!instruction.has_compute() && !instruction.has_update()) continue;
    const std::optional<KernelSpec> kernel = KernelOf(instruction, program);
    const std::optional<int64_t> bytes = kernel ? query(*kernel, device) : std::nullopt;
    if (!bytes.has_value()) return estimate;
    found.bytes = std::max(found.bytes, *bytes);
  }
  return found;
}

}  // namespace espalier
