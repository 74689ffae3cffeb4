// quantized_expert_linear: a thread block per 16 outputs of a row for 8 or 4 bits, a warp per
// output for bf16 or f16. Batch-invariant: the order of groups and choices does not depend on other
// rows.
#include <cstdint>

#include "ops/cuda/gemm/packed_weights_gemv.cuh"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace cuda_quantized_expert_linear {

constexpr int kWarps = kPackedWarps;

struct Problem {
  const int32_t* assign;
  const float* gates;  // null: no sum over the choices
  float* y;
  int64_t choices, k, experts, out;
  int64_t choices_per_x;  // that read one row of x
  FaultSink faults;

  __device__ int64_t ExpertOf(int64_t choice) const {
    const int64_t expert = assign[choice];
    if (expert >= 0 && expert < experts) return expert;
    faults.Report(FaultKind::kExpert, choice, expert, experts);
    return 0;
  }
  // The choices that row `row` of y adds up.
  __device__ int64_t First(int64_t row) const { return gates == nullptr ? row : row * k; }
  __device__ int64_t End(int64_t row) const { return gates == nullptr ? row + 1 : (row + 1) * k; }
  __device__ float Gate(int64_t choice) const { return gates == nullptr ? 1.0f : gates[choice]; }
};

// Grid: rows of y by blocks of outputs.
template <bool kFourBits>
__global__ void __launch_bounds__(kThreads)
    PackedKernel(PackedWeights shape, const uint8_t* weights, QuantizedActivations x, Problem p) {
  __shared__ float parts[kWarps][kPackOutputs];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row = blockIdx.x;
  float value = 0;
  for (int64_t choice = p.First(row); choice < p.End(row); ++choice) {
    const int64_t block = p.ExpertOf(choice) * shape.blocks() + blockIdx.y;
    const float total = SumPackedGroups<kFourBits>(shape, weights + block * shape.block_bytes(), x,
                                                   choice / p.choices_per_x);
    if (lane < kPackOutputs) parts[warp][lane] = total;
    __syncthreads();
    if (threadIdx.x < kPackOutputs) {
      float sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += parts[w][threadIdx.x];
      value = fmaf(p.Gate(choice), sum, value);
    }
    __syncthreads();
  }
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kPackOutputs + threadIdx.x;
  if (threadIdx.x < kPackOutputs && column < p.out) p.y[row * p.out + column] = value;
}

// Grid: rows of y by groups of kWarps outputs.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    NarrowKernel(const float* x, const T* weights, int64_t in, Problem p) {
  const int lane = threadIdx.x % 32;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kWarps + threadIdx.x / 32;
  if (column >= p.out) return;
  const int64_t row = blockIdx.x;
  float value = 0;
  for (int64_t choice = p.First(row); choice < p.End(row); ++choice) {
    const T* const w = weights + (p.ExpertOf(choice) * p.out + column) * in;
    const float* const from = x + choice / p.choices_per_x * in;
    float sum = 0;
    for (int64_t i = lane; i < in; i += 32) sum = fmaf(from[i], ToFloat(w[i]), sum);
    value = fmaf(p.Gate(choice), WarpReduce<SumOp>(sum), value);
  }
  if (lane == 0) p.y[row * p.out + column] = value;
}

class QuantizedExpertLinear : public Kernel {
 public:
  QuantizedExpertLinear(DeviceContexts& contexts, const KernelSpec& spec, int bits)
      : contexts_(contexts),
        shape_{bits, spec.outputs[0].dims.back(), spec.inputs[0].dims.back()},
        rounded_(bits == 16 ? 0 : RowsOf(spec.inputs[0].dims), shape_.groups(), &layout_) {}

  size_t workspace_bytes() const override { return layout_.bytes(); }

  KernelStatus Run(const KernelArgs& args) override {
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(contexts_.Current(&context));
    const TensorView &x = args.inputs[0], &weight = args.inputs[1], &assign = args.inputs[2];
    const TensorView& y = args.outputs[0];
    if (y.num_elements() == 0) return KernelStatus::Ok();
    const bool sums = Has(args.inputs, 3);
    const int64_t k = assign.dims()[1];
    const Problem problem{assign.as<int32_t>(),
                          sums ? args.inputs[3].as<float>() : nullptr,
                          y.as<float>(),
                          assign.num_elements(),
                          k,
                          weight.dims()[0],
                          shape_.out,
                          x.dims().size() == 3 ? 1 : k,
                          context->faults()};
    const auto rows = static_cast<unsigned>(sums ? assign.dims()[0] : problem.choices);
    if (shape_.bits == 16) {
      const dim3 grid(rows, static_cast<unsigned>((shape_.out + kWarps - 1) / kWarps));
      const auto launch = [&]<typename T>(TypeTag<T>) {
        NarrowKernel<<<grid, kThreads, 0, StreamOf(args)>>>(x.as<float>(), weight.as<T>(),
                                                            shape_.in, problem);
        return LaunchStatus(kName);
      };
      return weight.dtype() == DType::kF16 ? launch(TypeTag<__half>())
                                           : launch(TypeTag<__nv_bfloat16>());
    }
    const QuantizedActivations rounded = rounded_.At(args, RowsOf(x.dims()));
    ESPALIER_KERNEL_RETURN_IF_ERROR(Round(args, kName, rounded));
    const dim3 grid(rows, static_cast<unsigned>(shape_.blocks()));
    const auto kernel = shape_.bits == 4 ? PackedKernel<true> : PackedKernel<false>;
    kernel<<<grid, kThreads, 0, StreamOf(args)>>>(shape_, weight.as<uint8_t>(), rounded, problem);
    return LaunchStatus(kName);
  }

 private:
  static constexpr const char* kName = "quantized_expert_linear";

  DeviceContexts& contexts_;
  WorkspaceLayout layout_;
  const PackedWeights shape_;
  const QuantizedActivationsLayout rounded_;
};

}  // namespace cuda_quantized_expert_linear

void RegisterQuantizedExpertLinearCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_quantized_expert_linear;
  registry.Add(
      "quantized_expert_linear",
      [&contexts](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        const int bits = static_cast<int>(spec.attributes.Int("bits"));
        const DType dtype = spec.inputs[1].dtype;
        if (bits == 16 && !TakesType(dtype, {DType::kBF16, DType::kF16}, refusal)) return nullptr;
        const PackedWeights shape{bits, spec.outputs[0].dims.back(), spec.inputs[0].dims.back()};
        const Dims& weight = spec.inputs[1].dims;
        if (bits < 16 && (weight[1] != shape.blocks() || weight[2] != shape.block_bytes())) {
          *refusal = "packed weights can be cut into blocks of 16 outputs only";
          return nullptr;
        }
        if ((shape.out + kWarps - 1) / kWarps > 65535) {
          *refusal = "more than " + std::to_string(65535 * kWarps) + " outputs";
          return nullptr;
        }
        return std::make_unique<QuantizedExpertLinear>(contexts, spec, bits);
      });
}

}  // namespace espalier
