// reduce_sum and reduce_mean: sums over axes times a factor, and their gradients.
#pragma once

#include <vector>

#include "ops/cuda/binary.cuh"

namespace espalier {

inline std::vector<bool> SummedDims(const Attributes& attributes, size_t rank) {
  const std::vector<int64_t> axes = attributes.Ints("axes");
  std::vector<bool> summed(rank, axes.empty());
  for (int64_t axis : axes) summed[axis < 0 ? axis + static_cast<int64_t>(rank) : axis] = true;
  return summed;
}

template <typename T>
struct ElementValue {
  const T* x;
  __device__ float operator()(int64_t i) const { return ToFloat(x[i]); }
};

template <typename T>
struct SpreadElement {
  const T* dy;
  T* dx;
  BroadcastIndex index;
  float factor;
  __device__ void operator()(int64_t i) const {
    dx[i] = FromFloat<T>(ToFloat(dy[index(i)]) * factor);
  }
};

// `name` and `gradient` must be literals; the sum is multiplied by `factor`.
template <typename Factor>
void AddReduction(KernelRegistry& registry, const char* name, const char* gradient, Factor factor) {
  registry.Add(name, [=](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
    const std::vector<bool> summed = SummedDims(spec.attributes, spec.inputs[0].dims.size());
    const float scale = factor(spec.attributes);
    const bool batch_invariant = spec.batch_invariant;
    return MakeKernel(
        [=](const KernelArgs& args) {
          const TensorView &x = args.inputs[0], &y = args.outputs[0];
          return DispatchFloat(x.dtype(), name, [&](auto type) {
            using T = typename decltype(type)::T;
            return Reduce(ReduceShape::Make(x.dims(), summed), ElementValue<T>{x.as<T>()},
                          StoreScaled<T>{y.as<T>(), scale}, args.workspace, StreamOf(args), name,
                          batch_invariant);
          });
        },
        ReduceShape::Make(spec.inputs[0].dims, summed).WorkspaceBytes(batch_invariant));
  });
  registry.Add(
      gradient, [=](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[0].dtype, refusal)) return nullptr;
        const std::vector<bool> summed = SummedDims(spec.attributes, spec.outputs[0].dims.size());
        const float scale = factor(spec.attributes);
        return MakeKernel([=](const KernelArgs& args) {
          const TensorView &dy = args.inputs[0], &dx = args.outputs[0];
          if (!dx.present()) return KernelStatus::Ok();
          Dims kept = dx.dims();
          for (size_t d = 0; d < kept.size(); ++d) {
            if (summed[d]) kept[d] = 1;
          }
          return DispatchFloat(dx.dtype(), gradient, [&](auto type) {
            using T = typename decltype(type)::T;
            return ForEach(dx.num_elements(),
                           SpreadElement<T>{dy.as<T>(), dx.as<T>(),
                                            BroadcastIndex::Make(kept, dx.dims()), scale},
                           StreamOf(args), gradient);
          });
        });
      });
}

}  // namespace espalier
