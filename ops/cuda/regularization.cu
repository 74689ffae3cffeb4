#include "ops/cuda/loss.cuh"

namespace espalier {
namespace cuda_regularization {

struct PenaltyValue {
  const float* p;
  float l1, l2;
  __device__ float operator()(int64_t i) const { return l1 * fabsf(p[i]) + l2 * p[i] * p[i]; }
};

struct AddSlope {
  const float* p;
  const float* gradient;
  float* out;
  const float* scale;  // may be null: 1
  float l1, slope;
  __device__ void operator()(int64_t i) const {
    const float factor = scale != nullptr ? *scale : 1.0f;
    const float sign = p[i] > 0 ? 1.0f : p[i] < 0 ? -1.0f : 0.0f;
    out[i] = gradient[i] + factor * (l1 * sign + slope * p[i]);
  }
};

}  // namespace cuda_regularization

void RegisterRegularizationCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_regularization;
  registry.Add("regularization_loss", ForF32([](const KernelSpec& spec) {
                 const float l1 = static_cast<float>(spec.attributes.Float("l1"));
                 const float l2 = static_cast<float>(spec.attributes.Float("l2"));
                 return MakeKernel(
                     [l1, l2](const KernelArgs& args) {
                       const TensorView& p = args.inputs[0];
                       return Reduce(OverAll(p.num_elements()), PenaltyValue{p.as<float>(), l1, l2},
                                     StoreQuotient{args.outputs[0].as<float>(), 1.0},
                                     args.workspace, StreamOf(args), "regularization_loss");
                     },
                     OverAll(spec.inputs[0].num_elements()).WorkspaceBytes());
               }));
  registry.Add(
      "regularize_gradient", ForF32([](const KernelSpec& spec) {
        const float l1 = static_cast<float>(spec.attributes.Float("l1"));
        const float slope = static_cast<float>(2.0 * spec.attributes.Float("l2"));
        return MakeKernel([l1, slope](const KernelArgs& args) {
          const TensorView& out = args.outputs[0];
          return ForEach(
              out.num_elements(),
              AddSlope{args.inputs[0].as<float>(), args.inputs[1].as<float>(), out.as<float>(),
                       Has(args.inputs, 2) ? args.inputs[2].as<float>() : nullptr, l1, slope},
              StreamOf(args), "regularize_gradient");
        });
      }));
}

}  // namespace espalier
