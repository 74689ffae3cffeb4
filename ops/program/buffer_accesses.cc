#include "ops/program/buffer_accesses.h"

namespace espalier {
namespace {

constexpr bool kReads = true, kWrites = true, kNot = false;

// Calls visit(index, reads, writes) for every field that names a buffer; visit returns the new
// index.
template <typename Visit>
void VisitBuffers(v1::Instruction* instruction, const Visit& visit) {
  using Kind = v1::Instruction;
  const auto repeated = [&](google::protobuf::RepeatedField<int32_t>* fields, bool reads,
                            bool writes) {
    for (int32_t& field : *fields) field = visit(field, reads, writes);
  };
  switch (instruction->kind_case()) {
    case Kind::kCompute:
      repeated(instruction->mutable_compute()->mutable_inputs(), kReads, kNot);
      repeated(instruction->mutable_compute()->mutable_outputs(), kNot, kWrites);
      break;
    case Kind::kCopy: {
      v1::CopyInstruction* copy = instruction->mutable_copy();
      copy->set_source(visit(copy->source(), kReads, kNot));
      copy->set_destination(visit(copy->destination(), copy->accumulate(), kWrites));
      break;
    }
    case Kind::kFill: {
      v1::FillInstruction* fill = instruction->mutable_fill();
      fill->set_buffer(visit(fill->buffer(), kNot, kWrites));
      break;
    }
    case Kind::kSend: {
      v1::SendInstruction* send = instruction->mutable_send();
      send->set_buffer(visit(send->buffer(), kReads, kNot));
      break;
    }
    case Kind::kReceive: {
      v1::ReceiveInstruction* receive = instruction->mutable_receive();
      receive->set_buffer(visit(receive->buffer(), kNot, kWrites));
      break;
    }
    case Kind::kCollective: {
      v1::CollectiveInstruction* collective = instruction->mutable_collective();
      collective->set_input(visit(collective->input(), kReads, kNot));
      collective->set_output(visit(collective->output(), kNot, kWrites));
      break;
    }
    case Kind::kSwapOut: {
      v1::SwapInstruction* swap = instruction->mutable_swap_out();
      swap->set_buffer(visit(swap->buffer(), kReads, kNot));
      break;
    }
    case Kind::kSwapIn: {
      v1::SwapInstruction* swap = instruction->mutable_swap_in();
      swap->set_buffer(visit(swap->buffer(), kNot, kWrites));
      break;
    }
    case Kind::kLoadBatch: {
      v1::LoadBatchInstruction* load = instruction->mutable_load_batch();
      load->set_buffer(visit(load->buffer(), kNot, kWrites));
      break;
    }
    case Kind::kReport: {
      v1::ReportInstruction* report = instruction->mutable_report();
      report->set_buffer(visit(report->buffer(), kReads, kNot));
      break;
    }
    case Kind::kUpdate: {
      v1::UpdateInstruction* update = instruction->mutable_update();
      update->set_parameter(visit(update->parameter(), kReads, !update->has_result()));
      update->set_gradient(visit(update->gradient(), kReads, kNot));
      update->set_scale(visit(update->scale(), kReads, kNot));
      update->set_hyper(visit(update->hyper(), kReads, kNot));
      repeated(update->mutable_state(), kReads, kWrites);
      repeated(update->mutable_sums(), kReads, kNot);
      if (update->has_result()) update->set_result(visit(update->result(), kNot, kWrites));
      break;
    }
    case Kind::KIND_NOT_SET:
      break;
  }
}

}  // namespace

std::vector<BufferAccess> AccessesOf(const v1::Instruction& instruction) {
  std::vector<BufferAccess> accesses;
  v1::Instruction copy = instruction;
  VisitBuffers(&copy, [&](int buffer, bool reads, bool writes) {
    if (buffer >= 0) accesses.push_back({buffer, reads, writes});
    return buffer;
  });
  return accesses;
}

void RenameBuffers(const std::vector<int>& map, v1::Instruction* instruction) {
  VisitBuffers(instruction,
               [&](int buffer, bool, bool) { return buffer < 0 ? buffer : map[buffer]; });
}

KernelOperands KernelOperandsOf(const v1::Instruction& instruction) {
  KernelOperands operands;
  if (instruction.has_compute()) {
    const v1::ComputeInstruction& compute = instruction.compute();
    operands.inputs.assign(compute.inputs().begin(), compute.inputs().end());
    operands.outputs.assign(compute.outputs().begin(), compute.outputs().end());
  } else if (instruction.has_update()) {
    const v1::UpdateInstruction& update = instruction.update();
    operands.inputs = {update.parameter(), update.gradient(), update.scale(), update.hyper()};
    operands.inputs.insert(operands.inputs.end(), update.state().begin(), update.state().end());
    operands.inputs.insert(operands.inputs.end(), update.sums().begin(), update.sums().end());
    operands.outputs = {update.has_result() ? update.result() : update.parameter()};
  }
  return operands;
}

}  // namespace espalier
