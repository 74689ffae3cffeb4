#include "ops/cpu/reduce.h"

#include "ops/cpu/binary.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/sum.h"

namespace espalier {
namespace {

// `x` with 1 in the dimensions that are summed.
Dims KeptDims(const Attributes& attributes, Dims x) {
  const std::vector<int64_t> axes = attributes.Ints("axes");
  if (axes.empty()) return Dims(x.size(), 1);
  for (int64_t axis : axes) x[axis < 0 ? axis + static_cast<int64_t>(x.size()) : axis] = 1;
  return x;
}

void Reduce(const Attributes& attributes, double scale, const TensorView& x, const TensorView& y) {
  if (y.num_elements() == 0) return;
  if (x.num_elements() == y.num_elements()) {
    const float factor = static_cast<float>(scale);
    MapUnary([factor](float v) { return v * factor; }, x.as<float>(), y.as<float>(),
             y.num_elements());
    return;
  }
  const LoopNest nest =
      Merge(x.dims(),
            {DenseStrides(x.dims()), BroadcastStrides(KeptDims(attributes, x.dims()), x.dims())});
  const float* data = x.as<float>();
  const auto values = [data](const RowOffsets& at, int64_t begin, int64_t, float*) {
    return data + at[0] + begin;
  };
  SumOver(nest, 1, values, scale, y.as<float>(), y.num_elements());
}

// Every element of x has had the same part in its sum.
void Spread(const Attributes& attributes, double scale, const TensorView& dy,
            const TensorView& dx) {
  TensorView source = dy;
  source.spec.dims = KeptDims(attributes, dx.dims());
  const float factor = static_cast<float>(scale);
  binary_internal::Forward<float>([factor](float g, float) { return g * factor; }, source, source,
                                  dx);
}

double ScaleOf(const Attributes& attributes) {
  return attributes.Has("count") ? 1.0 / static_cast<double>(attributes.Int("count")) : 1.0;
}

}  // namespace

void AddReduction(KernelRegistry& registry, const std::string& name) {
  registry.Add(name, ViaF32([](const KernelSpec& spec, std::string*) {
                 return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
                   Reduce(attributes, ScaleOf(attributes), args.inputs[0], args.outputs[0]);
                   return KernelStatus::Ok();
                 });
               }));
  registry.Add(name + "_grad", ViaF32([](const KernelSpec& spec, std::string*) {
                 return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
                   Spread(attributes, ScaleOf(attributes), args.inputs[0], args.outputs[0]);
                   return KernelStatus::Ok();
                 });
               }));
}

}  // namespace espalier
