#include <algorithm>
#include <limits>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/pool.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/kernel/max_pool_index.h"

namespace espalier {
namespace {

std::unique_ptr<Kernel> MakeForward(const KernelSpec& spec, std::string*) {
  return MakeKernel([a = spec.attributes](const KernelArgs& args) {
    const TensorView &x = args.inputs[0], &values = args.outputs[0], &indices = args.outputs[1];
    const Dims& out = (values.present() ? values : indices).dims();
    const Windows windows = SlidingWindows(a, x.dims(), out);
    MaxPoolIndex index(x.spec);
    index.column_major = a.Bool("column_major");
    const int64_t area = out[2] * out[3];
    ParallelRanges(out[0] * out[1], windows.work(), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const float* in = x.as<float>() + plane * x.dims()[2] * x.dims()[3];
        for (int64_t at = 0; at < area; ++at) {
          const int64_t best = ArgMax(windows, in, at / out[3], at % out[3]);
          if (values.present()) {
            values.as<float>()[plane * area + at] =
                best < 0 ? -std::numeric_limits<float>::infinity() : in[best];
          }
          if (indices.present()) {
            indices.as<int64_t>()[plane * area + at] =
                best < 0 ? -1 : index.Start(plane) + index.FromRowMajor(best);
          }
        }
      }
    });
    return KernelStatus::Ok();
  });
}

// indices, dvalues, dindices (never there) -> dx
std::unique_ptr<Kernel> MakeBackward(const KernelSpec& spec, std::string*) {
  return MakeKernel([column_major = spec.attributes.Bool("column_major")](const KernelArgs& args) {
    const TensorView &indices = args.inputs[0], &dy = args.inputs[1], &dx = args.outputs[0];
    if (!dx.present()) return KernelStatus::Ok();
    MaxPoolIndex index(dx.spec);
    index.column_major = column_major;
    const int64_t in = dx.dims()[2] * dx.dims()[3], out = dy.dims()[2] * dy.dims()[3];
    ParallelRanges(dx.dims()[0] * dx.dims()[1], in + 4 * out, [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        float* to = dx.as<float>() + plane * in;
        std::fill(to, to + in, 0.0f);
        for (int64_t at = plane * out; at < (plane + 1) * out; ++at) {
          const int64_t best = indices.as<int64_t>()[at];
          if (best >= 0) to[index.ToRowMajor(best - index.Start(plane))] += dy.as<float>()[at];
        }
      }
    });
    return KernelStatus::Ok();
  });
}

}  // namespace

void RegisterMaxPoolIndicesCpu(KernelRegistry& registry) {
  registry.Add("max_pool_indices", ViaF32(MakeForward));
  registry.Add("max_pool_indices_grad", ViaF32(MakeBackward));
}

}  // namespace espalier
