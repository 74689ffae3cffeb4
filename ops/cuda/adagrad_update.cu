// torch.optim.Adagrad.
#include "ops/cuda/optimizer.cuh"

namespace espalier {
namespace cuda_adagrad_update {

struct Step {
  UpdateOperands o;
  float weight_decay, lr_decay, initial;
  float epsilon, below_root;  // added to the root, and to what it is taken of
  __device__ void operator()(int64_t i) const {
    const float p = o.parameter[i], step = o.hyper[1];
    const float gradient = o.Scale() * o.gradient[i] + weight_decay * p;
    // The sum starts at `initial`.
    const float total = o.buffers[0][i] + (step <= 1 ? initial : 0.0f) + gradient * gradient;
    o.buffers[0][i] = total;
    const float rate = o.hyper[0] / (1.0f + (step - 1.0f) * lr_decay);
    o.parameter[i] = p - rate * gradient / (sqrtf(total + below_root) + epsilon);
  }
};

}  // namespace cuda_adagrad_update

void RegisterAdagradUpdateCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_adagrad_update;
  registry.Add("adagrad_update", [](const KernelSpec& spec, std::string*) {
    const auto setting = [&](const char* name) {
      return static_cast<float>(spec.attributes.Float(name));
    };
    const bool in_sqrt = spec.attributes.Bool("eps_in_sqrt");
    const Step step{{},
                    setting("weight_decay"),
                    setting("lr_decay"),
                    setting("initial_accumulator_value"),
                    in_sqrt ? 0.0f : setting("eps"),
                    in_sqrt ? setting("eps") : 0.0f};
    return MakeKernel(
        [step](const KernelArgs& args) { return UpdateEach(args, step, "adagrad_update"); });
  });
}

}  // namespace espalier
