#include "ops/cpu/deterministic_sum.h"
#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/layout/copy.h"

namespace espalier {
namespace {

// dx is the sum of dy over the dimensions in which x was broadcast.
void Gradient(const TensorView& dy, const TensorView& dx) {
  if (dx.num_elements() == dy.num_elements()) return CopyBytes(dy.data, dx.data, dx.spec.bytes());
  const float* g = dy.as<float>();
  const auto values = [g](const RowOffsets& at, int64_t begin, int64_t, float*) {
    return g + at[0] + begin;
  };
  SumOver(Merge(dy.dims(), {DenseStrides(dy.dims()), BroadcastStrides(dx.dims(), dy.dims())}), 1,
          values, 1.0, dx.as<float>(), dx.num_elements());
}

}  // namespace

void RegisterExpandCpu(KernelRegistry& registry) {
  registry.Add("expand", [](const KernelSpec&, std::string*) {
    return MakeKernel([](const KernelArgs& args) {
      const TensorView &x = args.inputs[0], &y = args.outputs[0];
      CopyStrided(y.dims(), SizeOf(y.dtype()), x.data, BroadcastStrides(x.dims(), y.dims()), y.data,
                  DenseStrides(y.dims()));
      return KernelStatus::Ok();
    });
  });
  registry.Add("expand_grad", ViaF32([](const KernelSpec&, std::string*) {
                 return MakeKernel([](const KernelArgs& args) {
                   Gradient(args.inputs[0], args.outputs[0]);
                   return KernelStatus::Ok();
                 });
               }));
}

}  // namespace espalier
