// torch.optim.RMSprop.
#include "ops/cuda/optimizer.cuh"

namespace espalier {
namespace cuda_rmsprop_update {

struct Step {
  UpdateOperands o;
  float weight_decay, alpha, rest, momentum;
  float epsilon, below_root;  // added to the root, and to what it is taken of
  bool centered;
  __device__ void operator()(int64_t i) const {
    const float p = o.parameter[i];
    const float gradient = o.Scale() * o.gradient[i] + weight_decay * p;
    float variance = alpha * o.buffers[0][i] + rest * gradient * gradient;
    o.buffers[0][i] = variance;
    if (centered) {
      const float mean = alpha * o.buffers[2][i] + rest * gradient;
      o.buffers[2][i] = mean;
      variance -= mean * mean;
    }
    float direction = gradient / (sqrtf(variance + below_root) + epsilon);
    if (momentum > 0) {
      direction += momentum * o.buffers[1][i];
      o.buffers[1][i] = direction;
    }
    o.parameter[i] = p - o.hyper[0] * direction;
  }
};

}  // namespace cuda_rmsprop_update

void RegisterRmspropUpdateCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_rmsprop_update;
  registry.Add("rmsprop_update", [](const KernelSpec& spec, std::string*) {
    const double alpha = spec.attributes.Float("alpha");
    const float epsilon = static_cast<float>(spec.attributes.Float("eps"));
    const bool in_sqrt = spec.attributes.Bool("eps_in_sqrt");
    const Step step{{},
                    static_cast<float>(spec.attributes.Float("weight_decay")),
                    static_cast<float>(alpha),
                    static_cast<float>(1.0 - alpha),
                    static_cast<float>(spec.attributes.Float("momentum")),
                    in_sqrt ? 0.0f : epsilon,
                    in_sqrt ? epsilon : 0.0f,
                    spec.attributes.Bool("centered")};
    return MakeKernel(
        [step](const KernelArgs& args) { return UpdateEach(args, step, "rmsprop_update"); });
  });
}

}  // namespace espalier
