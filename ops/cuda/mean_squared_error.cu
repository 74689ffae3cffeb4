#include "ops/cuda/reduce.cuh"
#include "ops/cuda/register.h"

namespace espalier {
namespace {

struct SquaredDistance {
  const float* prediction;
  const float* target;
  __device__ float operator()(int64_t i) const {
    const float distance = prediction[i] - target[i];
    return distance * distance;
  }
};

struct GradientElement {
  const float* prediction;
  const float* target;
  const float* dy;
  float* dx;
  float factor;
  __device__ void operator()(int64_t i) const {
    dx[i] = factor * *dy * (prediction[i] - target[i]);
  }
};

ReduceShape Whole(int64_t n) { return ReduceShape::Make({n}, {true}); }

double CountOf(const KernelSpec& spec) {
  return static_cast<double>(spec.attributes.Int("count", 1));
}

}  // namespace

void RegisterMeanSquaredErrorCuda(KernelRegistry& registry, DeviceContexts&) {
  registry.Add("mean_squared_error",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesType(spec.inputs[0].dtype, {DType::kF32}, refusal)) return nullptr;
                 return MakeKernel(
                     [count = CountOf(spec)](const KernelArgs& args) {
                       const TensorView& x = args.inputs[0];
                       return Reduce(Whole(x.num_elements()),
                                     SquaredDistance{x.as<float>(), args.inputs[1].as<float>()},
                                     StoreQuotient{args.outputs[0].as<float>(), count},
                                     args.workspace, StreamOf(args), "mean_squared_error");
                     },
                     Whole(spec.inputs[0].num_elements()).WorkspaceBytes());
               });
  // prediction, target, dy -> the gradients of both
  registry.Add("mean_squared_error_grad",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!TakesType(spec.inputs[0].dtype, {DType::kF32}, refusal)) return nullptr;
                 const float factor = static_cast<float>(2.0 / CountOf(spec));
                 return MakeKernel([factor](const KernelArgs& args) {
                   for (size_t i = 0; i < args.outputs.size(); ++i) {
                     const TensorView& dx = args.outputs[i];
                     if (!dx.present()) continue;
                     const GradientElement element{
                         args.inputs[0].as<float>(), args.inputs[1].as<float>(),
                         args.inputs[2].as<float>(), dx.as<float>(), i == 0 ? factor : -factor};
                     ESPALIER_KERNEL_RETURN_IF_ERROR(ForEach(
                         dx.num_elements(), element, StreamOf(args), "mean_squared_error_grad"));
                   }
                   return KernelStatus::Ok();
                 });
               });
}

}  // namespace espalier
