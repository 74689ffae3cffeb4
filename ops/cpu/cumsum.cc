#include <algorithm>
#include <string>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/simd/vectorize.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/kernel/axis_lines.h"
#include "ops/kernel/kernel.h"

namespace espalier {
namespace {

// Columns that are summed side by side.
constexpr int64_t kColumns = 256;

template <typename T, typename Acc>
void Sum(const AxisLines& lines, bool exclusive, bool reverse, const T* x, T* y) {
  const int64_t n = lines.length;
  if (lines.inner == 1) {
    ParallelFor(lines.outer, 4 * n, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const T* from = x + line * n;
        T* to = y + line * n;
        Acc sum = 0;
        for (int64_t j = 0; j < n; ++j) {
          const int64_t i = reverse ? n - 1 - j : j;
          const Acc before = sum;
          sum += static_cast<Acc>(from[i]);
          to[i] = static_cast<T>(exclusive ? before : sum);
        }
      }
    });
    return;
  }
  const int64_t blocks = (lines.inner + kColumns - 1) / kColumns;
  ParallelFor(lines.outer * blocks, n * std::min(kColumns, lines.inner),
              [&](int64_t begin, int64_t end) {
                for (int64_t b = begin; b < end; ++b) {
                  const int64_t first = b % blocks * kColumns;
                  const int64_t start = b / blocks * n * lines.inner + first;
                  Acc sums[kColumns] = {};
                  for (int64_t j = 0; j < n; ++j) {
                    const int64_t at = start + (reverse ? n - 1 - j : j) * lines.inner;
                    Vectorize(
                        [](const T* from, T* to, Acc* sums, bool exclusive, int64_t count) {
#pragma omp simd
                          for (int64_t c = 0; c < count; ++c) {
                            const Acc before = sums[c];
                            sums[c] += static_cast<Acc>(from[c]);
                            to[c] = static_cast<T>(exclusive ? before : sums[c]);
                          }
                        },
                        x + at, y + at, sums, exclusive, std::min(kColumns, lines.inner - first));
                  }
                }
              });
}

// The gradient is the same sum of dy from the other end.
void Add(KernelRegistry& registry, const std::string& name, bool turned) {
  registry.Add(name, ViaF32([turned](const KernelSpec& spec, std::string*) {
                 const int64_t axis = spec.attributes.Int("axis");
                 const bool exclusive = spec.attributes.Bool("exclusive");
                 const bool reverse = spec.attributes.Bool("reverse") != turned;
                 return MakeKernel([=](const KernelArgs& args) {
                   const TensorView &x = args.inputs[0], &y = args.outputs[0];
                   if (x.num_elements() == 0) return KernelStatus::Ok();
                   const auto run = [&]<typename T, typename Acc>(T, Acc) {
                     Sum<T, Acc>(AxisLines(x.dims(), axis), exclusive, reverse, x.as<T>(),
                                 y.as<T>());
                   };
                   switch (x.dtype()) {
                     case DType::kI32:
                       run(uint32_t{}, uint32_t{});
                       break;
                     case DType::kI64:
                       run(uint64_t{}, uint64_t{});
                       break;
                     default:
                       run(float{}, double{});
                   }
                   return KernelStatus::Ok();
                 });
               }));
}

}  // namespace

void RegisterCumsumCpu(KernelRegistry& registry) {
  Add(registry, "cumsum", false);
  Add(registry, "cumsum_grad", true);
}

}  // namespace espalier
