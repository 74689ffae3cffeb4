#include <string>

#include "ops/cpu/layout/strided.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/kernel/kernel.h"
#include "ops/kernel/philox.h"

namespace espalier {
namespace {

struct Numbers {
  bool normal;
  float a, b;
};

// y[i] is the number of element `element` + i of the whole tensor.
void DrawRow(const Numbers& numbers, uint64_t key, uint64_t step, float* y, uint64_t element,
             int64_t n) {
  PhiloxBlock block{};
  for (int64_t i = 0; i < n; ++i, ++element) {
    if (i == 0 || (element & 3) == 0) block = Philox(key, element >> 2, step);
    y[i] = numbers.normal ? numbers.a + numbers.b * NormalOf(block, element)
                          : numbers.a + (numbers.b - numbers.a) *
                                            (static_cast<float>(block.word[element & 3] >> 8) *
                                             (1.0f / 16777216.0f));
  }
}

KernelStatus DrawAll(const KernelArgs& args, const Numbers& numbers) {
  const TensorView& y = args.outputs[0];
  if (y.num_elements() == 0) return KernelStatus::Ok();
  const uint64_t key = args.seed ^ (args.node_key * 0x9E3779B97F4A7C15ull);
  const uint64_t step = static_cast<uint64_t>(args.step);
  // Rows that are contiguous in the shard and in the whole tensor.
  const Dims whole = DenseStrides(y.spec.global);
  const LoopNest nest = Merge(y.dims(), {DenseStrides(y.dims()), whole});
  int64_t first = 0;
  for (size_t d = 0; d < whole.size(); ++d) first += y.spec.offset[d] * whole[d];
  float* target = y.as<float>();
  const int64_t n = nest.inner(), stride = nest.inner_stride(1);
  const auto draw = [&](int64_t at, int64_t element, int64_t count) {
    DrawRow(numbers, key, step, target + at, static_cast<uint64_t>(first + element), count);
  };
  if (nest.rows() == 1 && stride == 1) {
    ParallelFor(n, 20, [&](int64_t begin, int64_t end) { draw(begin, begin, end - begin); });
    return KernelStatus::Ok();
  }
  ParallelFor(nest.rows(), 20 * n, [&](int64_t begin, int64_t end) {
    ForRows(nest, begin, end, [&](const RowOffsets& at) {
      if (stride == 1) return draw(at[0], at[1], n);
      // The innermost dimension is split so far that each row of the shard has one element.
      for (int64_t i = 0; i < n; ++i) draw(at[0] + i, at[1] + i * stride, 1);
    });
  });
  return KernelStatus::Ok();
}

}  // namespace

void RegisterRandomLikeCpu(KernelRegistry& registry) {
  registry.Add("random_like", [](const KernelSpec& spec, std::string*) {
    const Numbers numbers{spec.attributes.String("distribution") == "normal",
                          static_cast<float>(spec.attributes.Float("a")),
                          static_cast<float>(spec.attributes.Float("b"))};
    return MakeKernel([numbers](const KernelArgs& args) { return DrawAll(args, numbers); });
  });
}

}  // namespace espalier
