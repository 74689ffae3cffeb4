// Shared by the optimiser updates: operands, and the loop over them.
#pragma once

#include <cstring>

#include "ops/cpu/copy.h"
#include "ops/cpu/parallel.h"
#include "ops/kernel/kernel.h"

namespace espalier {

// Inputs of an update; see ops/operators/optimizer.h. `scale` is 1 if there is none.
struct UpdateArgs {
  int64_t n;
  float* parameter;
  const float* gradient;
  float scale;
  double learning_rate;
  double step;  // from 1; 0: parameter and buffers stay as they are
  float* buffers[3] = {nullptr, nullptr, nullptr};

  explicit UpdateArgs(const KernelArgs& args) {
    n = args.inputs[0].num_elements();
    parameter = args.inputs[0].as<float>();
    gradient = args.inputs[1].as<float>();
    scale = args.inputs[2].present() ? *args.inputs[2].as<float>() : 1.0f;
    learning_rate = args.inputs[3].as<float>()[0];
    step = args.inputs[3].as<float>()[1];
    for (size_t i = 4; i < args.inputs.size() && i < 7; ++i)
      buffers[i - 4] = args.inputs[i].as<float>();
  }
};

// The output is the parameter itself, unless the program gave it memory of its own.
inline void CopyParameter(const KernelArgs& args) {
  if (args.outputs.empty() || !args.outputs[0].present()) return;
  CopyBytes(args.inputs[0].data, args.outputs[0].data, args.outputs[0].spec.bytes());
}

// `run` takes an UpdateArgs by reference and moves parameter and buffers.
template <typename Function>
std::unique_ptr<Kernel> MakeUpdateKernel(Function run) {
  return MakeKernel([run](const KernelArgs& args) {
    const UpdateArgs u(args);
    if (u.step >= 1) run(u);
    CopyParameter(args);
    return KernelStatus::Ok();
  });
}

}  // namespace espalier
