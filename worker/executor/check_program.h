// The checks that a program passes before anything of it is touched: after them, no index, offset
// or size in it can lead outside the arena.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/tensor/view.h"
#include "espalier/v1/program.pb.h"

namespace espalier {

struct CheckedProgram {
  std::vector<TensorSpec> specs;  // by buffer
  // By buffer: the earlier buffer of the same kind whose memory this one sees in another shape, or
  // the earlier shard of the same parameter in whose memory this region of it lies; else -1. Only
  // for buffers that are kept between steps.
  std::vector<int> alias_of;
  // By buffer: the tensor's name in the graph. A rank that holds several shards of one parameter
  // names them "w", "w#2", ...; all are "w" here.
  std::vector<std::string> tensor_names;
  std::vector<int64_t> host_slot_bytes;  // by host slot
  // By buffer: the host slot in which a parameter lies that streams: one that a swap_in brings into
  // memory which serves others before and after, and that nothing writes. Else -1.
  std::vector<int> streamed_slot;
  bool needs_communicator = false;
  bool needs_source = false;
};

// InvalidArgument names the buffer, or the instruction with its node, and what would be accepted.
absl::StatusOr<CheckedProgram> CheckProgram(const v1::Program& program);

// "instruction 12 (linear_grad of 'fc1')"
std::string Describe(const v1::Program& program, int instruction);
// "linear_grad", "send", "all_reduce"
std::string OpName(const v1::Instruction& instruction);

}  // namespace espalier
