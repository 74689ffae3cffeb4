#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace cuda_clip_scale {

constexpr int kMaxOperands = 256;

struct Scalars {
  const float* at[kMaxOperands];
  int count;
};

// One thread adds the scalars in order to *sum.
__global__ void AddKernel(Scalars scalars, double* sum, bool first) {
  double total = first ? 0 : *sum;
  for (int i = 0; i < scalars.count; ++i) total += *scalars.at[i];
  *sum = total;
}

// scale and norm may be null.
__global__ void FinishKernel(const double* sum, double max_norm, float* scale, float* norm) {
  const double length = sqrt(*sum);
  double factor = max_norm / (length + 1e-6);
  if (factor > 1) factor = 1;  // NaN stays: it must reach the parameters' loss, not be hidden
  if (scale != nullptr) *scale = static_cast<float>(factor);
  if (norm != nullptr) *norm = static_cast<float>(length);
}

KernelStatus Run(const KernelArgs& args, double max_norm) {
  double* sum = static_cast<double*>(args.workspace);
  size_t next = 0;
  do {
    Scalars scalars = {};
    const bool first = next == 0;
    while (next < args.inputs.size() && scalars.count < kMaxOperands) {
      scalars.at[scalars.count++] = args.inputs[next++].as<float>();
    }
    AddKernel<<<1, 1, 0, StreamOf(args)>>>(scalars, sum, first);
    ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus("clip_scale"));
  } while (next < args.inputs.size());
  const auto output = [&](size_t i) {
    return Has(args.outputs, i) ? args.outputs[i].as<float>() : nullptr;
  };
  FinishKernel<<<1, 1, 0, StreamOf(args)>>>(sum, max_norm, output(0), output(1));
  return LaunchStatus("clip_scale");
}

}  // namespace cuda_clip_scale

void RegisterClipScaleCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_clip_scale;
  registry.Add("clip_scale", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([max_norm = spec.attributes.Float("max_norm")](
                          const KernelArgs& args) { return Run(args, max_norm); },
                      sizeof(double));
  });
}

}  // namespace espalier
