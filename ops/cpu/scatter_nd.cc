#include "ops/cpu/elementwise.h"
#include "ops/cpu/layout/copy.h"
#include "ops/cpu/scatter.h"

namespace espalier {
namespace {

KernelStatus Scatter(const KernelArgs& args, const std::string& reduction) {
  const TensorView &x = args.inputs[0], &indices = args.inputs[1], &y = args.outputs[0];
  const NdRows rows(x.dims(), indices.dims(), 0);
  std::vector<int64_t> targets;
  if (KernelStatus status = rows.Resolve("scatter_nd", indices, &targets); !status.ok()) {
    return status;
  }
  CopyBytes(x.data, y.data, y.spec.bytes());
  return WithScattered(x.dtype(), reduction, [&](auto element) {
    using T = decltype(element);
    const T* from = args.inputs[2].as<T>();
    T* to = y.as<T>();
    return WithReduction<T>(reduction, [&](auto combine) {
      rows.ForTuples([&](int64_t t, int64_t first, int64_t last) {
        T* target = to + targets[t] * rows.inner + first;
        MapBinaryRow(combine, target, 1, from + t * rows.inner + first, 1, target, last - first);
      });
      return KernelStatus::Ok();
    });
  });
}

// indices, dy -> dx, d_updates; as that of scatter_elements.
template <typename T>
KernelStatus Gradient(const KernelArgs& args, bool adds) {
  const TensorView &indices = args.inputs[0], &dy = args.inputs[1];
  const TensorView &dx = args.outputs[0], &updates = args.outputs[1];
  const NdRows rows(dy.dims(), indices.dims(), 0);
  std::vector<int64_t> targets;
  if (KernelStatus status = rows.Resolve("scatter_nd", indices, &targets); !status.ok()) {
    return status;
  }
  std::vector<T> scratch(dx.present() || adds ? 0 : dy.num_elements());
  T* left = dx.present() ? dx.as<T>() : scratch.data();
  if (dx.present() || !adds) CopyBytes(dy.data, left, dy.spec.bytes());
  const T* from = adds ? dy.as<T>() : left;
  rows.ForTuples</*backwards=*/true>([&](int64_t t, int64_t first, int64_t last) {
    const int64_t target = targets[t] * rows.inner + first;
    const size_t bytes = (last - first) * sizeof(T);
    if (updates.present()) {
      std::memcpy(updates.as<T>() + t * rows.inner + first, from + target, bytes);
    }
    if (!adds) std::memset(left + target, 0, bytes);
  });
  return KernelStatus::Ok();
}

}  // namespace

void RegisterScatterNdCpu(KernelRegistry& registry) {
  registry.Add("scatter_nd", ScatterFactory([](const KernelSpec& spec, std::string*) {
                 return MakeKernel(
                     [reduction = spec.attributes.String("reduction")](const KernelArgs& args) {
                       return Scatter(args, reduction);
                     });
               }));
  registry.Add("scatter_nd_grad",
               [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
                 if (!HasScatterGradient(spec, refusal)) return nullptr;
                 const bool adds = spec.attributes.String("reduction") == "add";
                 return MakeKernel([adds](const KernelArgs& args) {
                   KernelStatus status;
                   WithBits(args.inputs[1].dtype(),
                            [&](auto bits) { status = Gradient<decltype(bits)>(args, adds); });
                   return status;
                 });
               });
}

}  // namespace espalier
