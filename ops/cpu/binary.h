// Binary elementwise kernels with numpy's broadcasting, and their gradients.
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>

#include "ops/cpu/deterministic_sum.h"
#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/layout/strided.h"
#include "ops/kernel/kernel.h"

namespace espalier {
namespace binary_internal {

template <typename T, typename Y, typename F>
void Forward(F f, const TensorView& a, const TensorView& b, const TensorView& y) {
  if (y.num_elements() == 0) return;
  const LoopNest nest =
      Merge(y.dims(), {BroadcastStrides(a.dims(), y.dims()), BroadcastStrides(b.dims(), y.dims()),
                       DenseStrides(y.dims())});
  const int64_t n = nest.inner(), sa = nest.inner_stride(0), sb = nest.inner_stride(1);
  const T* pa = a.as<T>();
  const T* pb = b.as<T>();
  Y* py = y.as<Y>();
  if (nest.rows() == 1) {
    ParallelFor(n, 1, [&](int64_t begin, int64_t end) {
      MapBinaryRow(f, pa + begin * sa, sa, pb + begin * sb, sb, py + begin, end - begin);
    });
    return;
  }
  ParallelFor(nest.rows(), n, [&](int64_t begin, int64_t end) {
    ForRows(nest, begin, end, [&](const RowOffsets& at) {
      MapBinaryRow(f, pa + at[0], sa, pb + at[1], sb, py + at[2], n);
    });
  });
}

// Returns elements [begin, begin + n) of a row of operand k; repeats a broadcast one in `buffer`.
template <typename T>
const T* RowOf(const T* data, const LoopNest& nest, size_t k, const RowOffsets& at, int64_t begin,
               int64_t n, T* buffer) {
  if (data == nullptr) return nullptr;
  if (nest.inner_stride(k) != 0) return data + at[k] + begin;
  std::fill(buffer, buffer + n, data[at[k]]);
  return buffer;
}

// target = sum over the broadcast dimensions of term(dy, a, b). `a` and `b` are null when the term
// does not read them.
template <typename T, typename Term>
void Gradient(Term term, const TensorView& dy, const T* a, const Dims& a_dims, const T* b,
              const Dims& b_dims, const TensorView& target) {
  if (target.num_elements() == 0) return;
  const LoopNest nest = Merge(
      dy.dims(), {DenseStrides(dy.dims()), BroadcastStrides(a_dims, dy.dims()),
                  BroadcastStrides(b_dims, dy.dims()), BroadcastStrides(target.dims(), dy.dims())});
  const float* g = dy.as<float>();
  const auto values = [&](const RowOffsets& at, int64_t begin, int64_t n, float* out) {
    T a_row[kSumBlock], b_row[kSumBlock];
    const T* x = RowOf(a, nest, 1, at, begin, n, a_row);
    const T* y = RowOf(b, nest, 2, at, begin, n, b_row);
    if (x != nullptr) {
      Vectorize(
          [](Term term, const float* g, const T* x, const T* y, float* out, int64_t n) {
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) out[i] = term(g[i], x[i], y[i]);
          },
          term, g + at[0] + begin, x, y, out, n);
    } else {
      Vectorize(
          [](Term term, const float* g, float* out, int64_t n) {
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) out[i] = term(g[i], T(), T());
          },
          term, g + at[0] + begin, out, n);
    }
    return static_cast<const float*>(out);
  };
  float* out = target.as<float>();
  if (target.num_elements() != dy.num_elements()) {
    SumOver(nest, 3, values, 1.0, out, target.num_elements());
    return;
  }
  const int64_t inner = nest.inner();
  const auto row = [&](const RowOffsets& at, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kSumBlock) {
      values(at, i, std::min(kSumBlock, end - i), out + at[0] + i);
    }
  };
  if (nest.rows() == 1) {
    ParallelFor(inner, 1, [&](int64_t begin, int64_t end) { row(RowOffsets{}, begin, end); });
  } else {
    ParallelFor(nest.rows(), inner, [&](int64_t begin, int64_t end) {
      ForRows(nest, begin, end, [&](const RowOffsets& at) { row(at, 0, inner); });
    });
  }
}

}  // namespace binary_internal

// y = f(a, b)
template <Takes takes, typename F>
KernelStatus RunBinary(const std::string& op, F f, const KernelArgs& args) {
  const TensorView &a = args.inputs[0], &b = args.inputs[1], &y = args.outputs[0];
  const bool taken = WithElements<takes>(a.dtype(), f, [&](auto element, auto g) {
    using T = decltype(element);
    binary_internal::Forward<T, Stored<T, decltype(g(element, element))>>(g, a, b, y);
  });
  return taken ? KernelStatus::Ok() : UnsupportedType(op, a.dtype());
}

// Adds kernel `name`: y = f(a, b).
template <Takes takes = Takes::kFloats, typename F>
void AddBinary(KernelRegistry& registry, const std::string& name, F f) {
  registry.Add(name, ViaF32([name, f](const KernelSpec&, std::string*) {
                 return MakeKernel(
                     [name, f](const KernelArgs& args) { return RunBinary<takes>(name, f, args); });
               }));
}

// Adds kernel `name`_grad: da is the sum of term_a(dy, a, b) over the dimensions in which a is
// broadcast, db that of term_b for b. Inputs are a, b, dy if `saves_inputs`, otherwise only dy.
template <bool saves_inputs, typename TermA, typename TermB>
KernelStatus RunBinaryGradient(TermA term_a, TermB term_b, const KernelArgs& args) {
  const TensorView& dy = args.inputs[saves_inputs ? 2 : 0];
  const float *a = nullptr, *b = nullptr;
  Dims a_dims = dy.dims(), b_dims = dy.dims();
  if constexpr (saves_inputs) {
    a = args.inputs[0].as<float>();
    b = args.inputs[1].as<float>();
    a_dims = args.inputs[0].dims();
    b_dims = args.inputs[1].dims();
  }
  const auto run = [&](auto term, const TensorView& target) {
    if (!target.present()) return;
    binary_internal::Gradient(term, dy, a, a_dims, b, b_dims, target);
  };
  run(term_a, args.outputs[0]);
  if (args.outputs.size() > 1) run(term_b, args.outputs[1]);
  return KernelStatus::Ok();
}

template <bool saves_inputs, typename TermA, typename TermB>
void AddBinaryGradient(KernelRegistry& registry, const std::string& name, TermA term_a,
                       TermB term_b) {
  registry.Add(name + "_grad", ViaF32([term_a, term_b](const KernelSpec&, std::string*) {
                 return MakeKernel([term_a, term_b](const KernelArgs& args) {
                   return RunBinaryGradient<saves_inputs>(term_a, term_b, args);
                 });
               }));
}

}  // namespace espalier
