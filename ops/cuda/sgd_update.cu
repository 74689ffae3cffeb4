// torch.optim.SGD with dampening 0.
#include "ops/cuda/optimizer.cuh"

namespace espalier {
namespace cuda_sgd_update {

struct Update {
  UpdateOperands o;
  float momentum, weight_decay;
  bool nesterov;
  __device__ void operator()(int64_t i) const {
    const float gradient = o.Scale() * o.gradient[i] + weight_decay * o.parameter[i];
    float direction = gradient;
    if (momentum > 0) {
      // The first step sets the buffer to the gradient and ignores its old contents.
      if (o.hyper[1] > 1) direction = momentum * o.buffers[0][i] + direction;
      o.buffers[0][i] = direction;
      if (nesterov) direction = gradient + momentum * direction;
    }
    o.parameter[i] -= o.hyper[0] * direction;
  }
};

}  // namespace cuda_sgd_update

void RegisterSgdUpdateCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_sgd_update;
  registry.Add("sgd_update", [](const KernelSpec& spec, std::string*) {
    const float momentum = static_cast<float>(spec.attributes.Float("momentum"));
    const float decay = static_cast<float>(spec.attributes.Float("weight_decay"));
    const bool nesterov = spec.attributes.Bool("nesterov");
    const Update update{{}, momentum, decay, nesterov};
    return MakeKernel(
        [update](const KernelArgs& args) { return UpdateEach(args, update, "sgd_update"); });
  });
}

}  // namespace espalier
