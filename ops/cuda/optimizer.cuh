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
  const float* hyper;  // learning rate, 1-based step
  float* buffers[3];   // may be null

  __device__ float Scale() const { return scale != nullptr ? *scale : 1.0f; }
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

}  // namespace espalier
