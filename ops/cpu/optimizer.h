// Shared by the optimizer updates: operands, and the loop over them.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/cpu/layout/copy.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/kernel/kernel.h"

namespace espalier {

// Shared by all parameters of one update.
struct UpdateStep {
  float scale;  // 1 if there is none
  double learning_rate;
  double step;  // from 1; 0: parameters and buffers do not change

  explicit UpdateStep(const KernelArgs& args)
      : scale(args.inputs[2].present() ? *args.inputs[2].as<float>() : 1.0f),
        learning_rate(args.inputs[3].as<float>()[0]),
        step(args.inputs[3].as<float>()[1]) {}
};

// One parameter's operands; see ops/operators/optimizer.h.
struct UpdateOperands {
  int64_t n = 0;
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float* buffers[3] = {nullptr, nullptr, nullptr};

  explicit UpdateOperands(std::span<const TensorView> inputs)
      : n(inputs[0].num_elements()),
        parameter(inputs[0].as<float>()),
        gradient(inputs[1].as<float>()) {
    for (size_t i = 4; i < inputs.size() && i < 7; ++i) buffers[i - 4] = inputs[i].as<float>();
  }

  // Elements [begin, begin + count).
  UpdateOperands Part(int64_t begin, int64_t count) const {
    UpdateOperands part = *this;
    part.n = count;
    part.parameter += begin;
    part.gradient += begin;
    for (float*& buffer : part.buffers) {
      if (buffer != nullptr) buffer += begin;
    }
    return part;
  }
};

// The update of one parameter.
struct UpdateArgs : UpdateStep, UpdateOperands {
  explicit UpdateArgs(const KernelArgs& args) : UpdateStep(args), UpdateOperands(args.inputs) {}
};

// The outputs are the parameters themselves, unless the program gave them memory of their own.
inline void CopyParameters(const KernelArgs& args) {
  const size_t operands = args.inputs.size() / std::max<size_t>(args.outputs.size(), 1);
  for (size_t i = 0; i < args.outputs.size(); ++i) {
    const TensorView& to = args.outputs[i];
    if (to.present()) CopyBytes(args.inputs[i * operands].data, to.data, to.spec.bytes());
  }
}

// An elementwise update of any number of parameters in one parallel loop (multi-tensor apply).
// `factors` computes from an UpdateStep what all elements need; `move(factors, operands)` updates
// the elements of one part of a parameter. The operands of the parameters follow each other.
template <typename Factors, typename Move>
std::unique_ptr<Kernel> MakeUpdateKernel(Factors factors, Move move) {
  return MakeKernel([factors, move](const KernelArgs& args) {
    const UpdateStep step(args);
    if (step.step >= 1) {
      const auto shared = factors(step);
      const size_t operands = args.inputs.size() / std::max<size_t>(args.outputs.size(), 1);
      std::vector<UpdateOperands> parameters;
      std::vector<int64_t> ends;
      for (size_t i = 0; i < args.inputs.size(); i += operands) {
        parameters.emplace_back(args.inputs.subspan(i, operands));
        ends.push_back((ends.empty() ? 0 : ends.back()) + parameters.back().n);
      }
      ParallelFor(ends.back(), 2, [&](int64_t begin, int64_t end) {
        size_t i = std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin();
        for (; begin < end; ++i) {
          const int64_t stop = std::min(end, ends[i]);
          if (stop == begin) continue;  // an empty parameter
          move(shared, parameters[i].Part(begin - (ends[i] - parameters[i].n), stop - begin));
          begin = stop;
        }
      });
    }
    CopyParameters(args);
    return KernelStatus::Ok();
  });
}

}  // namespace espalier
