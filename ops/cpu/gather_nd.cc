#include "ops/cpu/elementwise.h"
#include "ops/cpu/scatter.h"

namespace espalier {
namespace {

KernelStatus Gather(const KernelArgs& args, size_t batch_dims) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  const NdRows rows(x.dims(), args.inputs[1].dims(), batch_dims);
  std::vector<int64_t> targets;
  if (KernelStatus status = rows.Resolve("gather_nd", args.inputs[1], &targets); !status.ok()) {
    return status;
  }
  if (y.num_elements() == 0) return KernelStatus::Ok();
  WithBits(x.dtype(), [&](auto bits) {
    using T = decltype(bits);
    const T* from = x.as<T>();
    T* to = y.as<T>();
    const int64_t inner = rows.inner;
    ParallelFor(static_cast<int64_t>(targets.size()), inner, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        if (inner == 1) {
          to[t] = from[targets[t]];
        } else {
          std::memcpy(to + t * inner, from + targets[t] * inner, inner * sizeof(T));
        }
      }
    });
  });
  return KernelStatus::Ok();
}

KernelStatus Scatter(const KernelArgs& args, size_t batch_dims) {
  const TensorView &indices = args.inputs[0], &dx = args.outputs[0];
  const NdRows rows(dx.dims(), indices.dims(), batch_dims);
  std::vector<int64_t> targets;
  if (KernelStatus status = rows.Resolve("gather_nd", indices, &targets); !status.ok()) {
    return status;
  }
  std::memset(dx.data, 0, dx.spec.bytes());
  const float* from = args.inputs[1].as<float>();
  float* to = dx.as<float>();
  const auto plus = [](float a, float b) { return a + b; };
  rows.ForTuples([&](int64_t t, int64_t first, int64_t last) {
    float* target = to + targets[t] * rows.inner + first;
    MapBinaryRow(plus, target, 1, from + t * rows.inner + first, 1, target, last - first);
  });
  return KernelStatus::Ok();
}

}  // namespace

void RegisterGatherNdCpu(KernelRegistry& registry) {
  registry.Add("gather_nd", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([batch_dims = spec.attributes.Int("batch_dims")](const KernelArgs& args) {
      return Gather(args, batch_dims);
    });
  });
  registry.Add(
      "gather_nd_grad", ViaF32([](const KernelSpec& spec, std::string*) {
        return MakeKernel([batch_dims = spec.attributes.Int("batch_dims")](const KernelArgs& args) {
          return Scatter(args, batch_dims);
        });
      }));
}

}  // namespace espalier
