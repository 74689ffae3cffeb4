// arg_min and arg_max: finds the extreme value of each line as reduce_min and reduce_max do, then
// its index.
#pragma once

#include <string>
#include <vector>

#include "ops/cpu/reduce_min_max.h"
#include "ops/kernel/axis_lines.h"

namespace espalier {

// places[line]: the first (`last`: the last) element of each line that equals most[line].
template <typename T>
void FindPlaces(const AxisLines& lines, const T* x, const T* most, bool last, int64_t* places) {
  const auto equal = [](T a, T b) { return a == b || (a != a && b != b); };
  const int64_t n = lines.length;
  if (lines.inner == 1) {
    ParallelFor(lines.outer, n, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const T* from = x + line * n;
        int64_t i = last ? n - 1 : 0;
        while (!equal(from[i], most[line])) i += last ? -1 : 1;
        places[line] = i;
      }
    });
    return;
  }
  constexpr int64_t kColumns = 1024;
  const int64_t blocks = (lines.inner + kColumns - 1) / kColumns;
  ParallelFor(
      lines.outer * blocks, n * std::min(lines.inner, kColumns), [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) {
          const int64_t outer = b / blocks, first = b % blocks * kColumns;
          const int64_t count = std::min(kColumns, lines.inner - first);
          const int64_t at = outer * lines.inner + first;
          // Backwards, so that the first match wins.
          for (int64_t j = 0; j < n; ++j) {
            const int64_t i = last ? j : n - 1 - j;
            Vectorize(
                [equal](const T* x, const T* most, int64_t place, int64_t* places, int64_t count) {
#pragma omp simd
                  for (int64_t c = 0; c < count; ++c) {
                    places[c] = equal(x[c], most[c]) ? place : places[c];
                  }
                },
                x + (outer * n + i) * lines.inner + first, most + at, i, places + at, count);
          }
        }
      });
}

template <template <typename> class Start, typename Beyond>
void AddArgExtreme(KernelRegistry& registry, const std::string& name, Beyond beyond) {
  registry.Add(name, ViaF32([beyond](const KernelSpec& spec, std::string*) {
                 const int64_t axis = spec.attributes.Int("axis");
                 const bool last = spec.attributes.Bool("select_last");
                 return MakeKernel([beyond, axis, last](const KernelArgs& args) {
                   const TensorView &x = args.inputs[0], &y = args.outputs[0];
                   if (y.num_elements() == 0) return KernelStatus::Ok();
                   const Attributes axes = {{"axes", std::vector<int64_t>{axis}}};
                   const auto run = [&](auto start) {
                     using T = decltype(start);
                     const std::vector<T> most = FoldAxes<T>(
                         axes, x, y.num_elements(), start, [](T v) { return v; },
                         [beyond](T a, T b) { return beyond(b, a) || b != b ? b : a; });
                     FindPlaces(AxisLines(x.dims(), axis), x.as<T>(), most.data(), last,
                                y.as<int64_t>());
                   };
                   switch (x.dtype()) {
                     case DType::kI32:
                       run(Start<int32_t>::kValue);
                       break;
                     case DType::kI64:
                       run(Start<int64_t>::kValue);
                       break;
                     case DType::kI8:
                       run(Start<int8_t>::kValue);
                       break;
                     case DType::kU8:
                       run(Start<uint8_t>::kValue);
                       break;
                     default:
                       run(Start<float>::kValue);
                   }
                   return KernelStatus::Ok();
                 });
               }));
}

}  // namespace espalier
