#include "ops/cuda/optimizer.cuh"

namespace espalier {
namespace cuda_lion_update {

struct Step {
  UpdateOperands o;
  float weight_decay, beta1, rest1, beta2, rest2;
  __device__ void operator()(int64_t i) const {
    const float p = o.parameter[i], rate = o.hyper[0], m = o.buffers[0][i];
    const float gradient = o.Scale() * o.gradient[i];
    const float direction = beta1 * m + rest1 * gradient;
    // NaN stays NaN.
    const float sign = direction > 0 ? 1.0f : direction < 0 ? -1.0f : direction;
    o.buffers[0][i] = beta2 * m + rest2 * gradient;
    o.parameter[i] = (1.0f - rate * weight_decay) * p - rate * sign;
  }
};

}  // namespace cuda_lion_update

void RegisterLionUpdateCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_lion_update;
  registry.Add("lion_update", [](const KernelSpec& spec, std::string*) {
    const double beta1 = spec.attributes.Float("beta1"), beta2 = spec.attributes.Float("beta2");
    const Step step{{},
                    static_cast<float>(spec.attributes.Float("weight_decay")),
                    static_cast<float>(beta1),
                    static_cast<float>(1.0 - beta1),
                    static_cast<float>(beta2),
                    static_cast<float>(1.0 - beta2)};
    return MakeKernel(
        [step](const KernelArgs& args) { return UpdateEach(args, step, "lion_update"); });
  });
}

}  // namespace espalier
