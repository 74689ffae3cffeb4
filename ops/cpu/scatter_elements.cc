#include "ops/cpu/layout/axis_slices.h"
#include "ops/cpu/layout/copy.h"
#include "ops/cpu/scatter.h"

namespace espalier {
namespace {

KernelStatus Scatter(const KernelArgs& args, const std::string& reduction, size_t axis) {
  const TensorView &x = args.inputs[0], &indices = args.inputs[1], &y = args.outputs[0];
  CopyBytes(x.data, y.data, y.spec.bytes());
  return WithScattered(x.dtype(), reduction, [&](auto element) {
    using T = decltype(element);
    const T* from = args.inputs[2].as<T>();
    T* to = y.as<T>();
    return WithReduction<T>(reduction, [&](auto combine) {
      return ForElements(
          "scatter_elements", indices, x.dims(), axis,
          [=](int64_t i, int64_t target) { to[target] = combine(to[target], from[i]); });
    });
  });
}

// indices, dy -> dx, d_updates. Without a reduction only the last update of an element has a
// gradient, and the element itself none: seen from the end, the first one takes it away.
template <typename T>
KernelStatus Gradient(const KernelArgs& args, bool adds, size_t axis) {
  const TensorView &indices = args.inputs[0], &dy = args.inputs[1];
  const TensorView &dx = args.outputs[0], &updates = args.outputs[1];
  T* to = updates.as<T>();
  if (adds) {
    if (dx.present()) CopyBytes(dy.data, dx.data, dx.spec.bytes());
    if (to == nullptr) return KernelStatus::Ok();
    const T* from = dy.as<T>();
    return ForElements("scatter_elements", indices, dy.dims(), axis,
                       [=](int64_t i, int64_t target) { to[i] = from[target]; });
  }
  std::vector<T> scratch(dx.present() ? 0 : dy.num_elements());
  T* left = dx.present() ? dx.as<T>() : scratch.data();
  CopyBytes(dy.data, left, dy.spec.bytes());
  return ForElements</*backwards=*/true>("scatter_elements", indices, dy.dims(), axis,
                                         [=](int64_t i, int64_t target) {
                                           if (to != nullptr) to[i] = left[target];
                                           left[target] = 0;
                                         });
}

}  // namespace

void RegisterScatterElementsCpu(KernelRegistry& registry) {
  registry.Add(
      "scatter_elements", ScatterFactory([](const KernelSpec& spec, std::string*) {
        const size_t axis = AxisOf(spec.attributes, spec.inputs[0].dims.size());
        return MakeKernel([axis, reduction = spec.attributes.String("reduction")](
                              const KernelArgs& args) { return Scatter(args, reduction, axis); });
      }));
  registry.Add("scatter_elements_grad",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!HasScatterGradient(spec, refusal)) return nullptr;
                 const size_t axis = AxisOf(spec.attributes, spec.inputs[1].dims.size());
                 const bool adds = spec.attributes.String("reduction") == "add";
                 return MakeKernel([axis, adds](const KernelArgs& args) {
                   KernelStatus status;
                   WithBits(args.inputs[1].dtype(), [&](auto bits) {
                     status = Gradient<decltype(bits)>(args, adds, axis);
                   });
                   return status;
                 });
               });
}

}  // namespace espalier
