// Shared by the optimizer updates: their operands. The learning rate, the step and the clipping
// scale are in device memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "ops/cuda/copy.h"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

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

inline UpdateOperands OperandsOf(std::span<const TensorView> inputs) {
  UpdateOperands operands{inputs[0].as<float>(),
                          inputs[1].as<float>(),
                          inputs[2].as<float>(),
                          inputs[3].as<float>(),
                          {nullptr, nullptr, nullptr}};
  for (size_t i = 4; i < inputs.size() && i < 7; ++i) {
    operands.buffers[i - 4] = inputs[i].as<float>();
  }
  return operands;
}

// The outputs are the parameters themselves, unless the program gave them memory of their own.
inline KernelStatus CopyParameters(const KernelArgs& args, const char* op) {
  const size_t operands = args.inputs.size() / std::max<size_t>(args.outputs.size(), 1);
  for (size_t i = 0; i < args.outputs.size(); ++i) {
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        CopyWhole(args.inputs[i * operands], args.outputs[i], args.stream, op));
  }
  return KernelStatus::Ok();
}

// The parameters of one launch (multi-tensor apply). Passed by value: kernel parameters may take
// 32,764 bytes.
constexpr int kJointParameters = 400;
constexpr int64_t kUpdateChunk = 16 * kThreads;  // elements of one block
struct ParameterTable {
  int count = 0;
  UpdateOperands operands[kJointParameters];
  int64_t elements[kJointParameters];
  unsigned first_block[kJointParameters];
};
static_assert(sizeof(ParameterTable) < 32000);

// Each block updates one chunk of one parameter: `update` with the operands `o` of that parameter.
template <typename Update>
__global__ void __launch_bounds__(kThreads)
    UpdateKernel(const __grid_constant__ ParameterTable table, Update update) {
  int low = 0,
      high = table.count -
             1;  // binary search for the last parameter that begins at or before this block
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (table.first_block[middle] <= blockIdx.x) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  update.o = table.operands[low];
  if (!update.o.Moves()) return;
  const int64_t begin = static_cast<int64_t>(blockIdx.x - table.first_block[low]) * kUpdateChunk;
  const int64_t end = min(begin + kUpdateChunk, table.elements[low]);
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) update(i);
}

// Runs `update`, which has operands `o` and updates element i, for any number of parameters whose
// operands follow each other, with one launch per kJointParameters of them.
template <typename Update>
KernelStatus UpdateEach(const KernelArgs& args, const Update& update, const char* op) {
  const size_t operands = args.inputs.size() / std::max<size_t>(args.outputs.size(), 1);
  ParameterTable table;
  int64_t blocks = 0;
  const auto launch = [&]() {
    if (table.count == 0) return KernelStatus::Ok();
    UpdateKernel<Update>
        <<<static_cast<unsigned>(blocks), kThreads, 0, StreamOf(args)>>>(table, update);
    table.count = 0;
    blocks = 0;
    return LaunchStatus(op);
  };
  for (size_t i = 0; i < args.inputs.size(); i += operands) {
    const std::span<const TensorView> inputs = args.inputs.subspan(i, operands);
    const int64_t n = inputs[0].num_elements();
    if (n == 0) continue;
    const int64_t more = (n + kUpdateChunk - 1) / kUpdateChunk;
    if (table.count == kJointParameters || blocks + more > INT32_MAX) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(launch());
    }
    table.operands[table.count] = OperandsOf(inputs);
    table.elements[table.count] = n;
    table.first_block[table.count] = static_cast<unsigned>(blocks);
    ++table.count;
    blocks += more;
  }
  ESPALIER_KERNEL_RETURN_IF_ERROR(launch());
  return CopyParameters(args, op);
}

}  // namespace espalier
