// Reductions over axes with any operator, and their gradients.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "ops/cuda/element_bits.cuh"
#include "ops/cuda/reduce_sum_mean.cuh"

namespace espalier {

// The shapes and the workspace layout of a reduction.
struct ReductionPlan {
  std::vector<bool> reduced;
  bool batch_invariant = false;
  WorkspaceLayout layout;
  size_t partial = 0;  // of the reduction that runs with Op
  size_t extra = 0;    // one value for each element of y

  // `x` is the operand that has its shape.
  template <typename Op>
  static ReductionPlan Make(const KernelSpec& spec, const Dims& x, size_t extra_bytes = 0) {
    ReductionPlan plan;
    plan.reduced = SummedDims(spec.attributes, x.size());
    plan.batch_invariant = spec.batch_invariant;
    const ReduceShape shape = plan.Shape(x);
    plan.partial = plan.layout.Add(shape.WorkspaceBytes<Op>(spec.batch_invariant));
    plan.extra = plan.layout.Add(static_cast<size_t>(shape.outputs) * extra_bytes);
    return plan;
  }

  ReduceShape Shape(const Dims& x) const { return ReduceShape::Make(x, reduced); }

  // Maps an element of x to the element of y that it belongs to.
  BroadcastIndex Index(const Dims& x) const {
    Dims kept = x;
    for (size_t d = 0; d < x.size(); ++d) {
      if (reduced[d]) kept[d] = 1;
    }
    return BroadcastIndex::Make(kept, x);
  }

  template <typename Op, typename Value, typename Store>
  KernelStatus Run(const Dims& x, const Value& value, const Store& store, const KernelArgs& args,
                   const char* op) const {
    return Reduce<Op>(Shape(x), value, store, WorkspaceAt(args, partial), StreamOf(args), op,
                      batch_invariant);
  }
};

// Sums of integers, which wrap.
struct WrapSumOp {
  using Type = uint64_t;
  static __device__ __forceinline__ Type Identity() { return 0; }
  static __device__ __forceinline__ Type Apply(Type a, Type b) { return a + b; }
};

// term(x[i]), a float, or an integer without a sign for integers.
template <typename T, typename Term>
struct TermOf {
  const T* x;
  Term term;
  __device__ auto operator()(int64_t i) const {
    if constexpr (std::is_integral_v<T>) {
      return term(static_cast<uint64_t>(static_cast<int64_t>(x[i])));
    } else {
      return term(ToFloat(x[i]));
    }
  }
};

// y[o] = finish(sum)
template <typename T, typename Finish>
struct FinishInto {
  T* y;
  Finish finish;
  template <typename Sum>
  __device__ void operator()(int64_t o, Sum sum) const {
    if constexpr (std::is_integral_v<T>) {
      y[o] = static_cast<T>(sum);
    } else {
      y[o] = FromFloat<T>(finish(sum));
    }
  }
};

struct AsIs {
  template <typename T>
  __device__ T operator()(T x) const {
    return x;
  }
};

// Adds kernel `name`: y = finish(sum of term(x)). `integers`: also takes integers, without
// `finish`. `name` must be a literal.
template <bool integers, typename Term, typename Finish>
void AddFold(KernelRegistry& registry, const char* name, Term term, Finish finish) {
  registry.Add(name, [=](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    const TensorSpec& x = spec.inputs[0];
    if (!(integers ? TakesNumber(x.dtype, refusal) : TakesFloat(x.dtype, refusal))) return nullptr;
    const ReductionPlan plan = IsFloat(x.dtype) ? ReductionPlan::Make<SumOp>(spec, x.dims)
                                                : ReductionPlan::Make<WrapSumOp>(spec, x.dims);
    return MakeKernel(
        [=](const KernelArgs& args) {
          const TensorView &x = args.inputs[0], &y = args.outputs[0];
          const auto run = [&](auto type) {
            using T = typename decltype(type)::T;
            using Op = std::conditional_t<std::is_integral_v<T>, WrapSumOp, SumOp>;
            return plan.Run<Op>(x.dims(), TermOf<T, Term>{x.as<T>(), term},
                                FinishInto<T, Finish>{y.as<T>(), finish}, args, name);
          };
          if constexpr (integers) return DispatchNumber(x.dtype(), name, run);
          return DispatchFloat(x.dtype(), name, run);
        },
        plan.layout.bytes());
  });
}

template <typename T, typename F>
struct SpreadFold {
  const T* x;
  const T* y;
  const T* dy;
  T* dx;
  BroadcastIndex index;
  F f;
  __device__ void operator()(int64_t i) const {
    const int64_t o = index(i);
    dx[i] = FromFloat<T>(f(x == nullptr ? 0.0f : ToFloat(x[i]), y == nullptr ? 0.0f : ToFloat(y[o]),
                           ToFloat(dy[o])));
  }
};

// Adds kernel `name`: dx = f(x, y, dy), where y and dy are at the element that x belongs to. Inputs
// are x and y if they are saved, then dy. `name` must be a literal.
template <bool saves_input, bool saves_output, typename F>
void AddFoldGradient(KernelRegistry& registry, const char* name, F f) {
  registry.Add(name, [=](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    const Dims& x = spec.outputs[0].dims;
    if (!TakesFloat(spec.outputs[0].dtype, refusal)) return nullptr;
    const ReductionPlan plan = ReductionPlan::Make<SumOp>(spec, x);
    return MakeKernel([=](const KernelArgs& args) {
      const TensorView& dx = args.outputs[0];
      if (!dx.present()) return KernelStatus::Ok();
      return DispatchFloat(dx.dtype(), name, [&](auto type) {
        using T = typename decltype(type)::T;
        constexpr int kY = saves_input ? 1 : 0, kDy = kY + (saves_output ? 1 : 0);
        return ForEach(
            dx.num_elements(),
            SpreadFold<T, F>{saves_input ? args.inputs[0].as<T>() : nullptr,
                             saves_output ? args.inputs[kY].as<T>() : nullptr,
                             args.inputs[kDy].as<T>(), dx.as<T>(), plan.Index(dx.dims()), f},
            StreamOf(args), name);
      });
    });
  });
}

}  // namespace espalier
