#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {
namespace cuda_scale_learning_rate {

struct Scale {
  const float* from;
  float* to;
  float factor;
  __device__ void operator()(int64_t i) const { to[i] = i == 0 ? factor * from[i] : from[i]; }
};

}  // namespace cuda_scale_learning_rate

void RegisterScaleLearningRateCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_scale_learning_rate;
  registry.Add("scale_learning_rate", [](const KernelSpec& spec, std::string*) {
    const float factor = static_cast<float>(spec.attributes.Float("factor"));
    return MakeKernel([factor](const KernelArgs& args) {
      const Scale scale{args.inputs[0].as<float>(), args.outputs[0].as<float>(), factor};
      return ForEach(2, scale, StreamOf(args), "scale_learning_rate");
    });
  });
}

}  // namespace espalier
