#include "ops/cuda/element_bits.cuh"
#include "ops/cuda/reduce_sum_mean.cuh"

namespace espalier {
namespace cuda_tile {

template <typename T>
struct TileElement {
  const T* x;
  T* y;
  int rank = 0;
  int64_t x_dims[8] = {}, y_dims[8] = {}, x_strides[8] = {};
  __device__ void operator()(int64_t i) const {
    int64_t rest = i, from = 0;
    for (int d = rank - 1; d >= 0; --d) {
      from += rest % y_dims[d] % x_dims[d] * x_strides[d];
      rest /= y_dims[d];
    }
    y[i] = x[from];
  }
};

KernelStatus Forward(const KernelArgs& args) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  return DispatchBits(y.dtype(), "tile", [&](auto type) {
    using T = typename decltype(type)::T;
    TileElement<T> each{x.as<T>(), y.as<T>(), static_cast<int>(x.dims().size())};
    const Dims strides = DenseStrides(x.dims());
    for (size_t d = 0; d < strides.size(); ++d) {
      each.x_dims[d] = x.dims()[d];
      each.y_dims[d] = y.dims()[d];
      each.x_strides[d] = strides[d];
    }
    return ForEach(y.num_elements(), each, StreamOf(args), "tile");
  });
}

// dy with each dimension as [repeat, size of x]: the sum over the repeats.
ReduceShape SumOfRepeats(const Dims& x, const Dims& y) {
  Dims dims;
  std::vector<bool> summed;
  for (size_t d = 0; d < x.size(); ++d) {
    dims.insert(dims.end(), {x[d] == 0 ? 0 : y[d] / x[d], x[d]});
    summed.insert(summed.end(), {true, false});
  }
  return ReduceShape::Make(dims, summed);
}

}  // namespace cuda_tile

void RegisterTileCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_tile;
  registry.Add("tile", [](const KernelSpec&, std::string*) { return MakeKernel(Forward); });
  registry.Add(
      "tile_grad", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.outputs[0].dtype, refusal)) return nullptr;
        return MakeKernel(
            [](const KernelArgs& args) {
              const TensorView &dy = args.inputs[0], &dx = args.outputs[0];
              if (!dx.present()) return KernelStatus::Ok();
              return DispatchFloat(dx.dtype(), "tile_grad", [&](auto type) {
                using T = typename decltype(type)::T;
                return Reduce(SumOfRepeats(dx.dims(), dy.dims()), ElementValue<T>{dy.as<T>()},
                              StoreScaled<T>{dx.as<T>(), 1.0f}, args.workspace, StreamOf(args),
                              "tile_grad");
              });
            },
            SumOfRepeats(spec.outputs[0].dims, spec.inputs[0].dims).WorkspaceBytes());
      });
}

}  // namespace espalier
