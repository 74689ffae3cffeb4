#include "ops/cpu/deterministic_sum.h"
#include "ops/cpu/dtype/convert.h"

namespace espalier {
namespace {

// The loops over y: each dimension becomes [repeat, size of x], with stride 0 in x for the repeats.
struct TileLoops {
  Dims dims, x_strides;

  TileLoops(const Dims& x, const Dims& y) {
    const Dims dense = DenseStrides(x);
    for (size_t d = 0; d < x.size(); ++d) {
      dims.insert(dims.end(), {x[d] == 0 ? 0 : y[d] / x[d], x[d]});
      x_strides.insert(x_strides.end(), {0, dense[d]});
    }
  }
};

}  // namespace

void RegisterTileCpu(KernelRegistry& registry) {
  registry.Add("tile", [](const KernelSpec&, std::string*) {
    return MakeKernel([](const KernelArgs& args) {
      const TensorView &x = args.inputs[0], &y = args.outputs[0];
      const TileLoops loops(x.dims(), y.dims());
      CopyStrided(loops.dims, SizeOf(y.dtype()), x.data, loops.x_strides, y.data,
                  DenseStrides(loops.dims));
      return KernelStatus::Ok();
    });
  });
  registry.Add("tile_grad", ViaF32([](const KernelSpec&, std::string*) {
                 return MakeKernel([](const KernelArgs& args) {
                   const TensorView &dy = args.inputs[0], &dx = args.outputs[0];
                   if (dx.num_elements() == 0) return KernelStatus::Ok();
                   const TileLoops loops(dx.dims(), dy.dims());
                   const float* g = dy.as<float>();
                   const auto values = [g](const RowOffsets& at, int64_t begin, int64_t, float*) {
                     return g + at[0] + begin;
                   };
                   SumOver(Merge(loops.dims, {DenseStrides(loops.dims), loops.x_strides}), 1,
                           values, 1.0, dx.as<float>(), dx.num_elements());
                   return KernelStatus::Ok();
                 });
               }));
}

}  // namespace espalier
