// Validates a program before it is loaded. Afterwards no index, offset or size in it can reach
// outside the arena.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/program.pb.h"
#include "ops/tensor/view.h"

namespace espalier {

struct CheckedProgram {
  std::vector<TensorSpec> specs;  // by buffer
  // By buffer: an earlier buffer of the same kind whose memory this one reinterprets in another
  // shape, or the earlier shard of the same parameter that contains this region; else -1. Set only
  // for buffers kept between steps.
  std::vector<int> alias_of;
  // By buffer: the tensor's name in the graph. Several shards of one parameter on a rank are named
  // "w", "w#2", ...; all are "w" here.
  std::vector<std::string> tensor_names;
  std::vector<int64_t> host_slot_bytes;  // by host slot
  // By buffer: the host slot of a streamed parameter (streamed_parameters.h); else -1.
  std::vector<int> streamed_slot;
  bool needs_communicator = false;
  bool needs_source = false;
};

// Returns InvalidArgument naming the buffer, or the instruction with its node, and what would be
// accepted.
absl::StatusOr<CheckedProgram> CheckProgram(const v1::Program& program);

// Returns "instruction 12 (linear_grad of 'fc1')".
std::string Describe(const v1::Program& program, int instruction);
// Returns "linear_grad", "send", "all_reduce".
std::string OpName(const v1::Instruction& instruction);

}  // namespace espalier
