// torch.optim.Adam, and AdamW with `decoupled`; keras.optimizers.Adam with `epsilon_hat`.
#include "ops/cuda/optimizer.cuh"

namespace espalier {
namespace cuda_adam_update {

struct Adam {
  double beta1, beta2, epsilon, weight_decay;
  bool decoupled, epsilon_hat;
};

// Factors derived from the hyperparameters, computed once per step in f64.
struct StepFactors {
  float parameter_factor, step_size, root_correction, epsilon;
};

__global__ void FactorsKernel(Adam adam, const float* hyper, StepFactors* factors) {
  const double learning_rate = hyper[0], step = hyper[1];
  factors->parameter_factor =
      static_cast<float>(adam.decoupled ? 1.0 - learning_rate * adam.weight_decay : 1.0);
  factors->step_size = static_cast<float>(learning_rate / (1.0 - pow(adam.beta1, step)));
  const double root_correction = 1.0 / sqrt(1.0 - pow(adam.beta2, step));
  factors->root_correction = static_cast<float>(root_correction);
  factors->epsilon =
      static_cast<float>(adam.epsilon_hat ? adam.epsilon * root_correction : adam.epsilon);
}

struct Update {
  UpdateOperands o;
  const StepFactors* factors;
  float gradient_decay, beta1, beta2, rest1, rest2;
  __device__ void operator()(int64_t i) const {
    const float p = o.parameter[i];
    const float gradient = o.Scale() * o.gradient[i] + gradient_decay * p;
    const float mean = beta1 * o.buffers[0][i] + rest1 * gradient;
    const float square = beta2 * o.buffers[1][i] + rest2 * gradient * gradient;
    o.buffers[0][i] = mean;
    o.buffers[1][i] = square;
    const float denominator = sqrtf(square) * factors->root_correction + factors->epsilon;
    o.parameter[i] = factors->parameter_factor * p - factors->step_size * mean / denominator;
  }
};

KernelStatus Run(const KernelArgs& args, const Adam& adam) {
  StepFactors* factors = static_cast<StepFactors*>(args.workspace);
  FactorsKernel<<<1, 1, 0, StreamOf(args)>>>(adam, OperandsOf(args.inputs).hyper, factors);
  ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus("adam_update"));
  const Update update{{},
                      factors,
                      static_cast<float>(adam.decoupled ? 0.0 : adam.weight_decay),
                      static_cast<float>(adam.beta1),
                      static_cast<float>(adam.beta2),
                      static_cast<float>(1.0 - adam.beta1),
                      static_cast<float>(1.0 - adam.beta2)};
  return UpdateEach(args, update, "adam_update");
}

}  // namespace cuda_adam_update

void RegisterAdamUpdateCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_adam_update;
  registry.Add("adam_update", [](const KernelSpec& spec, std::string*) {
    const Adam adam{spec.attributes.Float("beta1"),    spec.attributes.Float("beta2"),
                    spec.attributes.Float("epsilon"),  spec.attributes.Float("weight_decay"),
                    spec.attributes.Bool("decoupled"), spec.attributes.Bool("epsilon_hat")};
    return MakeKernel([adam](const KernelArgs& args) { return Run(args, adam); },
                      sizeof(StepFactors));
  });
}

}  // namespace espalier
