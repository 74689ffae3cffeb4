#include "ops/cuda/label_rank.cuh"

namespace espalier {
namespace cuda_categorical_accuracy {

const char kName[] = "categorical_accuracy";

// Returns the index of the row's first maximum to all threads; -1 if the row contains a NaN.
__device__ int64_t PlaceOfLargest(const float* row, int64_t classes) {
  __shared__ int64_t place;
  float most = -INFINITY;
  bool number = true;
  for (int64_t i = threadIdx.x; i < classes; i += kThreads) {
    most = fmaxf(most, row[i]);
    number = number && !isnan(row[i]);
  }
  most = BlockMax(most);
  const bool numbers = __syncthreads_and(number) != 0;
  if (threadIdx.x == 0) {
    place = -1;
    for (int64_t i = 0; numbers && i < classes && place < 0; ++i) {
      if (row[i] == most) place = i;
    }
  }
  __syncthreads();
  return place;
}

__global__ void __launch_bounds__(kThreads)
    SameKernel(const float* x, const float* target, int64_t classes, float* right) {
  const int64_t place = PlaceOfLargest(target + blockIdx.x * classes, classes);
  const int rank = place < 0 ? 1 : RankInRow(x + blockIdx.x * classes, classes, place);
  if (threadIdx.x == 0) right[blockIdx.x] = rank == 0 ? 1.0f : 0.0f;
}

KernelStatus Run(const KernelArgs& args, double count, size_t partial) {
  const int64_t rows = RowsOf(args.inputs[0].dims());
  float* right = static_cast<float*>(args.workspace);
  if (rows > 0) {
    SameKernel<<<static_cast<unsigned>(rows), kThreads, 0, StreamOf(args)>>>(
        args.inputs[0].as<float>(), args.inputs[1].as<float>(), args.inputs[0].dims().back(),
        right);
    ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus(kName));
  }
  return Reduce(OverAll(rows), StoredValue{right, ExampleWeights::Of(args, 2, false, rows)},
                StoreQuotient{args.outputs[0].as<float>(), count}, WorkspaceAt(args, partial),
                StreamOf(args), kName);
}

}  // namespace cuda_categorical_accuracy

void RegisterCategoricalAccuracyCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_categorical_accuracy;
  registry.Add(kName, ForF32([](const KernelSpec& spec) {
                 const int64_t rows = RowsOf(spec.inputs[0].dims);
                 WorkspaceLayout layout;
                 layout.Add(rows * sizeof(float));
                 const size_t partial = layout.Add(OverAll(rows).WorkspaceBytes());
                 return MakeKernel(
                     [count = DivisorOf(spec.attributes), partial](const KernelArgs& args) {
                       return Run(args, count, partial);
                     },
                     layout.bytes());
               }));
}

}  // namespace espalier
