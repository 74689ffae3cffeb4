#include "worker/executor/check.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "ops/optimizer/schedule.h"
#include "worker/executor/check_parts.h"

namespace espalier {

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
