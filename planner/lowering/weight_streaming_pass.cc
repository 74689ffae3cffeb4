#include "planner/lowering/weight_streaming_pass.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/program/buffer_accesses.h"
#include "planner/memory/weight_streaming.h"

namespace espalier {
namespace {

// Returns "w" for "w#2", a rank's second shard of one tensor.
std::string TensorName(const std::string& buffer) {
  const size_t mark = buffer.rfind('#');
  const bool numbered = mark != std::string::npos && mark + 1 < buffer.size() &&
                        buffer.find_first_not_of("0123456789", mark + 1) == std::string::npos;
  return numbered ? buffer.substr(0, mark) : buffer;
}

struct Parameters {
  std::vector<int> buffers;
  // of these buffers; steps are the program's instructions
  std::vector<StreamableWeight> parameters;
};

Parameters ParametersOf(const RankProgram& program, const std::set<ParameterUse>& partial) {
  Parameters found;
  std::vector<int> index(static_cast<size_t>(program.program().buffers_size()), -1);
  for (int step = 0; step < program.program().instructions_size(); ++step) {
    const v1::Instruction& instruction = program.program().instructions(step);
    for (const BufferAccess& access : AccessesOf(instruction)) {
      if (program.kind(access.buffer) != v1::PARAMETER_SHARD) continue;
      int& at = index[static_cast<size_t>(access.buffer)];
      if (at < 0) {
        at = static_cast<int>(found.buffers.size());
        found.buffers.push_back(access.buffer);
        // A parameter that shares memory cannot stream.
        found.parameters.push_back(
            {program.spec(access.buffer).bytes(), step, step, !program.owns_memory(access.buffer)});
      }
      StreamableWeight& parameter = found.parameters[static_cast<size_t>(at)];
      parameter.last_use = step;
      const std::string tensor = TensorName(program.program().buffers(access.buffer).name());
      parameter.must_stay |= access.writes || partial.count({instruction.node(), tensor}) > 0;
    }
  }
  return found;
}

}  // namespace

std::set<ParameterUse> PartialUses(const OpRegistry& registry, const Graph& graph) {
  std::set<ParameterUse> uses;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    const OpDef* def = registry.Find(node.op);
    if (def == nullptr || def->cost == nullptr) continue;
    const double read = def->cost(graph.TypesOf(static_cast<NodeId>(n))).bytes;
    for (ValueId v : node.inputs) {
      if (v == kNoValue || graph.value(v).kind != ValueKind::kParameter) continue;
      if (read < static_cast<double>(graph.value(v).type.bytes())) {
        uses.emplace(node.name, graph.value(v).name);
      }
    }
  }
  return uses;
}

int64_t MinResidentBytes(const std::set<ParameterUse>& partial, const RankProgram& program) {
  return MinWeightBudget(ParametersOf(program, partial).parameters);
}

absl::StatusOr<int64_t> RunWeightStreamingPass(const std::set<ParameterUse>& partial,
                                               int64_t budget, RankProgram* program) {
  program->MergePrologue();
  const auto [buffers, parameters] = ParametersOf(*program, partial);
  const absl::StatusOr<WeightStreamingPlan> plan = PlanWeightStreaming(parameters, budget);
  if (!plan.ok()) {
    return absl::Status(plan.status().code(),
                        absl::StrCat("resident_weight_bytes: ", plan.status().message()));
  }
  if (plan->buffer_bytes == 0) return 0;
  const std::vector<v1::Instruction> before(program->program().instructions().begin(),
                                            program->program().instructions().end());
  const int double_buffer = program->Allocate(plan->buffer_bytes);
  std::vector<std::vector<int>> arriving(before.size());  // by step
  for (size_t p = 0; p < parameters.size(); ++p) {
    const WeightLocation& place = plan->places[p];
    if (!place.streams) continue;
    program->MoveInto(buffers[p], double_buffer, place.offset);
    arriving[static_cast<size_t>(place.copy_before)].push_back(buffers[p]);
  }
  std::vector<v1::Instruction> after;
  int host_slots = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    for (int buffer : arriving[i]) {
      v1::Instruction swap;
      swap.set_node(before[i].node());
      swap.mutable_swap_in()->set_buffer(buffer);
      swap.mutable_swap_in()->set_host_slot(host_slots++);
      after.push_back(std::move(swap));
    }
    after.push_back(before[i]);
  }
  program->SetInstructions(std::move(after), {});
  return plan->streamed_bytes;
}

}  // namespace espalier
