#include <algorithm>
#include <cstring>

#include "ops/cpu/layout/strided.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/kernel/kernel.h"

namespace espalier {
namespace {

// Each row keeps its elements [low, high); where a shard lies in the whole matrix decides which.
void Keep(const TensorView& x, const TensorView& y, bool upper, int64_t k) {
  const size_t rank = x.dims().size();
  const int64_t rows = x.dims()[rank - 2], columns = x.dims()[rank - 1];
  if (y.num_elements() == 0) return;
  const int64_t size = static_cast<int64_t>(SizeOf(x.dtype()));
  const int64_t shift = x.spec.offset[rank - 2] - x.spec.offset[rank - 1];
  k = std::clamp(k, -(int64_t{1} << 48), int64_t{1} << 48);
  ParallelFor(x.num_elements() / columns, columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t diagonal = row % rows + shift + k;  // the column in which j - i is k
      const int64_t low = upper ? std::clamp<int64_t>(diagonal, 0, columns) : 0;
      const int64_t high = upper ? columns : std::clamp<int64_t>(diagonal + 1, 0, columns);
      const char* from = At(x.data, row * columns * size);
      char* to = At(y.data, row * columns * size);
      std::memset(to, 0, low * size);
      std::memcpy(to + low * size, from + low * size, (high - low) * size);
      std::memset(to + high * size, 0, (columns - high) * size);
    }
  });
}

}  // namespace

// The gradient is the same of dy.
void RegisterTriangleCpu(KernelRegistry& registry) {
  const KernelFactory factory = [](const KernelSpec& spec, std::string*) {
    return MakeKernel([upper = spec.attributes.Bool("upper"),
                       k = spec.attributes.Int("k")](const KernelArgs& args) {
      Keep(args.inputs[0], args.outputs[0], upper, k);
      return KernelStatus::Ok();
    });
  };
  registry.Add("triangle", factory);
  registry.Add("triangle_grad", factory);
}

}  // namespace espalier
