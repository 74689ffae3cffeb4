// Shared by the optimiser updates: their operands. The learning rate, the step and the clipping
// scale lie in device memory.
#pragma once

#include "ops/cuda/copy.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/register.h"

namespace espalier {

// Inputs of an update; see ops/operators/optimizer.h.
struct UpdateOperands {
  float* parameter;
  const float* gradient;
  const float* scale;  // may be null: 1
  const float* hyper;  // learning rate, 1-based step; step 0: nothing changes
  float* buffers[3];   // may be null

  __device__ float Scale() const { return scale != nullptr ? *scale : 1.0f; }
  __device__ bool Moves() const { return hyper[1] >= 1; }
};

inline UpdateOperands OperandsOf(const KernelArgs& args) {
  UpdateOperands operands{args.inputs[0].as<float>(),
                          args.inputs[1].as<float>(),
                          args.inputs[2].as<float>(),
                          args.inputs[3].as<float>(),
                          {nullptr, nullptr, nullptr}};
  for (size_t i = 4; i < args.inputs.size() && i < 7; ++i) {
    operands.buffers[i - 4] = args.inputs[i].as<float>();
  }
  return operands;
}

// The output is the parameter itself, unless the program gave it memory of its own.
inline KernelStatus CopyParameter(const KernelArgs& args, const char* op) {
  if (args.outputs.empty()) return KernelStatus::Ok();
  return CopyWhole(args.inputs[0], args.outputs[0], args.stream, op);
}

// An update whose `o` are its UpdateOperands, where there is one this step.
template <typename Update>
struct Guarded {
  Update update;
  __device__ void operator()(int64_t i) const {
    if (update.o.Moves()) update(i);
  }
};

// Runs `update`, which has operands `o` and moves element i, for the whole parameter.
template <typename Update>
KernelStatus UpdateEach(const KernelArgs& args, Update update, const char* op) {
  update.o = OperandsOf(args);
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      ForEach(args.inputs[0].num_elements(), Guarded<Update>{update}, StreamOf(args), op));
  return CopyParameter(args, op);
}

}  // namespace espalier
