#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/cuda/whole_index.cuh"
#include "ops/kernel/philox.h"

namespace espalier {
namespace cuda_random_like {

struct Draw {
  float* y;
  WholeIndex whole;
  uint64_t seed, node_key, step;
  bool normal;
  float a, b;
  __device__ void operator()(int64_t i) const {
    const uint64_t element = static_cast<uint64_t>(whole(i));
    if (!normal) {
      y[i] = a + (b - a) * PhiloxUniform(seed, node_key, step, element);
      return;
    }
    const uint64_t key = seed ^ (node_key * 0x9E3779B97F4A7C15ull);
    y[i] = a + b * NormalOf(Philox(key, element >> 2, step), element);
  }
};

}  // namespace cuda_random_like

void RegisterRandomLikeCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_random_like;
  registry.Add("random_like", [](const KernelSpec& spec, std::string*) {
    const bool normal = spec.attributes.String("distribution") == "normal";
    const float a = static_cast<float>(spec.attributes.Float("a"));
    const float b = static_cast<float>(spec.attributes.Float("b"));
    return MakeKernel([normal, a, b](const KernelArgs& args) {
      const TensorView& y = args.outputs[0];
      if (!y.present()) return KernelStatus::Ok();
      const Draw draw{y.as<float>(),
                      WholeIndex(y.spec),
                      args.seed,
                      args.node_key,
                      static_cast<uint64_t>(args.step),
                      normal,
                      a,
                      b};
      return ForEach(y.num_elements(), draw, StreamOf(args), "random_like");
    });
  });
}

}  // namespace espalier
