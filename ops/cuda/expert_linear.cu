// expert_linear: one warp per row and output; the terms of a sum always go to the same lane in the
// same order, so it is batch-invariant. For decoding, where reading the chosen experts' weights
// dominates.
#include <cstdint>

#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace cuda_expert_linear {

constexpr int kWarps = 8;

template <typename T>
struct Problem {
  const T* x;
  const T* weight;
  const int32_t* assign;
  const T* gates;  // null: no sum over the choices
  T* y;
  int64_t choices, k, experts, out, in;
  int64_t choices_per_x;  // that read one row of x
  FaultSink faults;

  __device__ float Product(int64_t choice, int64_t column, int lane) const {
    int64_t expert = assign[choice];
    if (expert < 0 || expert >= experts) {
      faults.Report(FaultKind::kExpert, choice, expert, experts);
      expert = 0;
    }
    const T* row = x + choice / choices_per_x * in;
    const T* weights = weight + (expert * out + column) * in;
    float sum = 0;
    for (int64_t i = lane; i < in; i += 32) sum = fmaf(ToFloat(row[i]), ToFloat(weights[i]), sum);
    return WarpReduce<SumOp>(sum);
  }
};

// Grid: rows of y by groups of kWarps columns.
template <typename T>
__global__ void __launch_bounds__(32 * kWarps) ExpertLinearKernel(Problem<T> p) {
  const int lane = threadIdx.x % 32;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kWarps + threadIdx.x / 32;
  if (column >= p.out) return;
  const int64_t row = blockIdx.x;
  float value = 0;
  if (p.gates == nullptr) {
    value = p.Product(row, column, lane);
  } else {
    for (int64_t j = row * p.k; j < (row + 1) * p.k; ++j) {
      value = fmaf(ToFloat(p.gates[j]), p.Product(j, column, lane), value);
    }
  }
  if (lane == 0) p.y[row * p.out + column] = FromFloat<T>(value);
}

KernelStatus Run(DeviceContexts& contexts, const KernelArgs& args) {
  DeviceContext* context = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
  const TensorView &x = args.inputs[0], &weight = args.inputs[1], &assign = args.inputs[2];
  if (!args.outputs[0].present() || args.outputs[0].num_elements() == 0) return KernelStatus::Ok();
  return DispatchFloat(x.dtype(), "expert_linear", [&](auto type) {
    using T = typename decltype(type)::T;
    const bool sums = Has(args.inputs, 3);
    const int64_t k = assign.dims()[1];
    const Problem<T> problem{x.as<T>(),
                             weight.as<T>(),
                             assign.as<int32_t>(),
                             sums ? args.inputs[3].as<T>() : nullptr,
                             args.outputs[0].as<T>(),
                             assign.num_elements(),
                             k,
                             weight.dims()[0],
                             weight.dims()[1],
                             weight.dims()[2],
                             x.dims().size() == 3 ? 1 : k,
                             context->faults()};
    const int64_t rows = sums ? assign.dims()[0] : problem.choices;
    const dim3 grid(static_cast<unsigned>(rows),
                    static_cast<unsigned>((problem.out + kWarps - 1) / kWarps));
    ExpertLinearKernel<T><<<grid, 32 * kWarps, 0, StreamOf(args)>>>(problem);
    return LaunchStatus("expert_linear");
  });
}

}  // namespace cuda_expert_linear

void RegisterExpertLinearCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_expert_linear;
  registry.Add(
      "expert_linear",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        if ((spec.inputs[1].dims[1] + kWarps - 1) / kWarps > 65535) {
          *refusal = "more than " + std::to_string(65535 * kWarps) + " outputs";
          return nullptr;
        }
        return MakeKernel([&contexts](const KernelArgs& args) { return Run(contexts, args); });
      });
}

}  // namespace espalier
