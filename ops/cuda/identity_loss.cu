#include "ops/cuda/loss.cuh"

namespace espalier {
namespace cuda_identity_loss {

struct Spread {
  const float* dy;
  float* dx;
  double divisor;
  ExampleWeights examples;
  __device__ void operator()(int64_t i) const {
    dx[i] = static_cast<float>(*dy / divisor) * examples[i];
  }
};

}  // namespace cuda_identity_loss

void RegisterIdentityLossCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_identity_loss;
  registry.Add(
      "identity_loss", ForF32([](const KernelSpec& spec) {
        return MakeKernel(
            [divisor = DivisorOf(spec.attributes)](const KernelArgs& args) {
              const TensorView& x = args.inputs[0];
              const ExampleWeights examples = ExampleWeights::Of(args, 1, false, x.num_elements());
              return Reduce(OverAll(x.num_elements()), StoredValue{x.as<float>(), examples},
                            StoreQuotient{args.outputs[0].as<float>(), divisor}, args.workspace,
                            StreamOf(args), "identity_loss");
            },
            OverAll(spec.inputs[0].num_elements()).WorkspaceBytes());
      }));
  registry.Add("identity_loss_grad", ForF32([](const KernelSpec& spec) {
                 return MakeKernel([divisor = DivisorOf(spec.attributes)](const KernelArgs& args) {
                   const TensorView& dx = args.outputs[0];
                   return ForEach(dx.num_elements(),
                                  Spread{args.inputs.back().as<float>(), dx.as<float>(), divisor,
                                         ExampleWeights::Of(args, 0, true, dx.num_elements())},
                                  StreamOf(args), "identity_loss_grad");
                 });
               }));
}

}  // namespace espalier
