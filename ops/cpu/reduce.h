// Reductions over axes, and their gradients. Attributes `axes` (empty: all) as in the definition.
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "ops/cpu/deterministic_sum.h"
#include "ops/cpu/dtype/convert.h"
#include "ops/kernel/kernel.h"

namespace espalier {

// Returns `x` with 1 in the reduced dimensions.
Dims KeptDims(const Attributes& attributes, Dims x);

// Returns the loops over x; operand 0 has the dimensions of x, operand 1 those of y.
inline LoopNest ReductionNest(const Attributes& attributes, const Dims& x) {
  return Merge(x, {DenseStrides(x), BroadcastStrides(KeptDims(attributes, x), x)});
}

// out[o] = scale * sum of term(x[i], a[o]) over the x[i] that belong to o. `term` is a captureless
// lambda; `a` may be null if it does not read it.
template <typename Term>
void SumAxes(const Attributes& attributes, const TensorView& x, const float* a, Term term,
             double scale, float* out, int64_t count) {
  const LoopNest nest = ReductionNest(attributes, x.dims());
  const int64_t step = nest.inner_stride(1);
  const float* data = x.as<float>();
  const auto values = [=](const RowOffsets& at, int64_t begin, int64_t n, float* buffer) {
    const float* v = data + at[0] + begin;
    if (a == nullptr || step == 0) {
      Vectorize(
          [](Term term, const float* x, float a, float* out, int64_t n) {
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) out[i] = term(x[i], a);
          },
          term, v, a == nullptr ? 0.0f : a[at[1]], buffer, n);
    } else {
      Vectorize(
          [](Term term, const float* x, const float* a, float* out, int64_t n) {
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) out[i] = term(x[i], a[i]);
          },
          term, v, a + at[1] + begin, buffer, n);
    }
    return static_cast<const float*>(buffer);
  };
  SumOver(nest, 1, values, scale, out, count);
}

// Returns for every element of y the reduction by `op` of load(x[i]) over the x[i] that belong to
// it. `load` and `op` are captureless lambdas; `start` is the identity of `op`.
template <typename T, typename Acc, typename Load, typename Op>
std::vector<Acc> FoldAxes(const Attributes& attributes, const TensorView& x, int64_t count,
                          Acc start, Load load, Op op) {
  const LoopNest nest = ReductionNest(attributes, x.dims());
  const bool keeps_inner = nest.inner_stride(1) != 0;
  const T* data = x.as<T>();
  const auto add = [=](Acc* all, const RowOffsets& at, int64_t begin, int64_t end) {
    const T* v = data + at[0] + begin;
    if (keeps_inner) {
      Vectorize(
          [](Load load, Op op, const T* v, Acc* all, int64_t n) {
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) all[i] = op(all[i], load(v[i]));
          },
          load, op, v, all + at[1] + begin, end - begin);
    } else {
      Acc& one = all[at[1]];
      one = op(one, Vectorize(
                        [](Load load, Op op, Acc start, const T* v, int64_t n) {
                          Acc lanes[kSumLanes];
                          for (Acc& lane : lanes) lane = start;
                          const int64_t whole = n - n % kSumLanes;
                          for (int64_t i = 0; i < whole; i += kSumLanes) {
                            for (int64_t j = 0; j < kSumLanes; ++j) {
                              lanes[j] = op(lanes[j], load(v[i + j]));
                            }
                          }
                          for (int64_t j = 0; j < n - whole; ++j) {
                            lanes[j] = op(lanes[j], load(v[whole + j]));
                          }
                          for (int64_t j = 1; j < kSumLanes; ++j) lanes[0] = op(lanes[0], lanes[j]);
                          return lanes[0];
                        },
                        load, op, start, v, end - begin));
    }
  };
  return ReduceOver(nest, 1, start, count, add, op);
}

// As above, with the result stored in y.
template <typename T, typename Acc, typename Load, typename Op>
void FoldInto(const Attributes& attributes, const TensorView& x, const TensorView& y, Acc start,
              Load load, Op op) {
  const std::vector<Acc> all = FoldAxes<T>(attributes, x, y.num_elements(), start, load, op);
  for (size_t i = 0; i < all.size(); ++i) y.as<T>()[i] = static_cast<T>(all[i]);
}

// Sums of term(x[i]) of integers, modulo 2^n: `term` maps unsigned to unsigned.
template <typename Term>
void SumIntegers(const Attributes& attributes, const TensorView& x, const TensorView& y,
                 Term term) {
  const auto run = [&](auto zero) {
    using Word = decltype(zero);
    FoldInto<Word>(attributes, x, y, zero, term, [](Word a, Word b) { return a + b; });
  };
  if (x.dtype() == DType::kI32) return run(uint32_t{0});
  run(uint64_t{0});
}

// dx[i] = term(x[i], a[o], b[o]), where o is the element of y that x[i] belongs to. `x` may be null
// if the term does not read it.
template <typename Term>
void SpreadAxes(const Attributes& attributes, const float* x, const float* a, const float* b,
                const TensorView& dx, Term term) {
  if (dx.num_elements() == 0) return;
  const LoopNest nest = ReductionNest(attributes, dx.dims());
  const int64_t inner = nest.inner(), step = nest.inner_stride(1);
  float* out = dx.as<float>();
  if (x == nullptr) x = out;  // is loaded, but its value is not used
  const auto row = [=](const RowOffsets& at, int64_t begin, int64_t end) {
    const int64_t i = at[0] + begin, o = at[1] + begin * step;
    if (step == 0) {
      Vectorize(
          [](Term term, const float* x, float a, float b, float* out, int64_t n) {
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) out[i] = term(x[i], a, b);
          },
          term, x + i, a[o], b[o], out + i, end - begin);
    } else {
      Vectorize(
          [](Term term, const float* x, const float* a, const float* b, float* out, int64_t n) {
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) out[i] = term(x[i], a[i], b[i]);
          },
          term, x + i, a + o, b + o, out + i, end - begin);
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

// Adds kernel `name`: run(attributes, x, y), and kernel `name`_grad: gradient(attributes, operands
// of the gradient, dx). Floating-point operands are f32.
template <typename Run, typename GradientRun>
void AddFold(KernelRegistry& registry, const std::string& name, Run run, GradientRun gradient) {
  registry.Add(name, ViaF32([run](const KernelSpec& spec, std::string*) {
                 return MakeKernel([run, attributes = spec.attributes](const KernelArgs& args) {
                   if (args.outputs[0].num_elements() > 0) {
                     run(attributes, args.inputs[0], args.outputs[0]);
                   }
                   return KernelStatus::Ok();
                 });
               }));
  registry.Add(
      name + "_grad", ViaF32([gradient](const KernelSpec& spec, std::string*) {
        return MakeKernel([gradient, attributes = spec.attributes](const KernelArgs& args) {
          const TensorView& dx = args.outputs[0];
          if (dx.num_elements() > 0) gradient(attributes, args.inputs, dx);
          return KernelStatus::Ok();
        });
      }));
}

// Adds kernels `name` and `name`_grad of reduce_sum and reduce_mean. Both multiply by 1 / attribute
// `count` if present. Integers are supported if it is absent.
void AddReduction(KernelRegistry& registry, const std::string& name);

}  // namespace espalier
