#include "worker/executor/check_program.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "ops/optimizer/lr_schedule.h"
#include "worker/executor/check_program_internal.h"

namespace espalier {

std::string OpName(const v1::Instruction& instruction) {
  switch (instruction.kind_case()) {
    case v1::Instruction::kCompute:
      return instruction.compute().op();
    case v1::Instruction::kCopy:
      return "copy";
    case v1::Instruction::kFill:
      return "fill";
    case v1::Instruction::kSend:
      return "send";
    case v1::Instruction::kReceive:
      return "receive";
    case v1::Instruction::kCollective:
      switch (instruction.collective().kind()) {
        case v1::CollectiveInstruction::ALL_REDUCE:
          return "all_reduce";
        case v1::CollectiveInstruction::ALL_GATHER:
          return "all_gather";
        case v1::CollectiveInstruction::REDUCE_SCATTER:
          return "reduce_scatter";
        case v1::CollectiveInstruction::ALL_TO_ALL:
          return "all_to_all";
        case v1::CollectiveInstruction::BROADCAST:
          return "broadcast";
        default:
          return "collective";
      }
    case v1::Instruction::kSwapOut:
      return "swap_out";
    case v1::Instruction::kSwapIn:
      return "swap_in";
    case v1::Instruction::kLoadBatch:
      return "load_batch";
    case v1::Instruction::kReport:
      return "report";
    case v1::Instruction::kUpdate:
      return "update";
    case v1::Instruction::KIND_NOT_SET:
      break;
  }
  return "unknown";
}

std::string Describe(const v1::Program& program, int instruction) {
  const v1::Instruction& i = program.instructions(instruction);
  const auto source = program.sources().find(i.node());
  return absl::StrCat("instruction ", instruction, " (", OpName(i), " of '", i.node(), "'",
                      source == program.sources().end() ? "" : ", ",
                      source == program.sources().end() ? "" : source->second, ")");
}

absl::StatusOr<CheckedProgram> CheckProgram(const v1::Program& program) {
  const std::string name = absl::StrCat("program '", program.name(), "': ");
  if (program.format_version() != 1) {
    return BadProgram(name, "format version ", program.format_version(), "; this worker reads 1");
  }
  if (program.world_size() < 1 || program.rank() < 0 || program.rank() >= program.world_size()) {
    return BadProgram(name, "rank ", program.rank(), " of ", program.world_size());
  }
  if (program.arena_bytes() < 0)
    return BadProgram(name, "an arena of ", program.arena_bytes(), " bytes");
  for (int g = 0; g < program.groups_size(); ++g) {
    int previous = -1;
    for (int rank : program.groups(g).ranks()) {
      if (rank <= previous || rank >= program.world_size()) {
        return BadProgram(name, "group ", g, " must hold ascending ranks below ",
                          program.world_size());
      }
      previous = rank;
    }
    if (previous < 0) return BadProgram(name, "group ", g, " is empty");
  }
  if (absl::Status s = CheckSchedule(program.optimizer().learning_rate()); !s.ok()) {
    return BadProgram(name, std::string(s.message()));
  }
  CheckedProgram checked;
  for (const auto part : {CheckBuffers, CheckInstructions}) {
    if (absl::Status s = part(program, &checked); !s.ok()) {
      return BadProgram(name, std::string(s.message()));
    }
  }
  for (const auto& [output, buffer] : program.outputs()) {
    if (buffer < 0 || buffer >= program.buffers_size()) {
      return BadProgram(name, "output '", output, "' is buffer ", buffer, "; there are ",
                        program.buffers_size());
    }
  }
  return checked;
}

}  // namespace espalier
