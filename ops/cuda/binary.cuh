// Binary elementwise kernels with numpy's broadcasting, and their gradients.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/math/reduce.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/cuda/strided.h"

namespace espalier {

// Maps the row-major index of an element of the result to the offset of an operand's element.
struct BroadcastIndex {
  bool dense = false;  // the operand has the shape of the result
  bool narrow = true;  // all indices fit 32 bits
  int rank = 0;
  int64_t size[8] = {};
  int64_t stride[8] = {};

  static BroadcastIndex Make(const Dims& operand, const Dims& result) {
    BroadcastIndex index;
    index.dense = NumElements(operand) == NumElements(result);
    index.narrow = NumElements(result) < std::numeric_limits<int32_t>::max();
    const Dims strides = DenseStrides(operand);
    const size_t missing = result.size() - operand.size();
    for (size_t d = 0; d < result.size(); ++d) {
      if (result[d] == 1) continue;
      const int64_t stride = d < missing || operand[d - missing] == 1 ? 0 : strides[d - missing];
      const int last = index.rank - 1;
      if (last >= 0 && index.stride[last] == stride * result[d]) {
        index.size[last] *= result[d];
        index.stride[last] = stride;
        continue;
      }
      index.size[index.rank] = result[d];
      index.stride[index.rank] = stride;
      ++index.rank;
    }
    return index;
  }

  __device__ int64_t operator()(int64_t i) const {
    if (dense) return i;
    return narrow ? Offset<uint32_t>(static_cast<uint32_t>(i))
                  : Offset<uint64_t>(static_cast<uint64_t>(i));
  }

 private:
  template <typename Index>
  __device__ int64_t Offset(Index i) const {
    int64_t offset = 0;
    for (int d = rank - 1; d > 0; --d) {
      const Index next = i / static_cast<Index>(size[d]);
      offset += static_cast<int64_t>(i - next * static_cast<Index>(size[d])) * stride[d];
      i = next;
    }
    return rank == 0 ? 0 : offset + static_cast<int64_t>(i) * stride[0];
  }
};

template <typename T, typename Y, typename F>
struct BroadcastBinary {
  const T* a;
  const T* b;
  Y* y;
  BroadcastIndex a_index, b_index;
  F f;
  __device__ void operator()(int64_t i) const {
    y[i] = StoreElement<Y>(f(LoadElement(a[a_index(i)]), LoadElement(b[b_index(i)])));
  }
};

// y = f(a, b)
template <Takes takes, typename F>
KernelStatus RunBinary(const KernelArgs& args, F f, const char* op) {
  const TensorView &a = args.inputs[0], &b = args.inputs[1], &y = args.outputs[0];
  return DispatchElements<takes>(a.dtype(), op, [&](auto type) {
    using T = typename decltype(type)::T;
    using Y = Stored<T, std::invoke_result_t<F, Seen<T>, Seen<T>>>;
    const BroadcastBinary<T, Y, F> each{a.as<T>(),
                                        b.as<T>(),
                                        y.as<Y>(),
                                        BroadcastIndex::Make(a.dims(), y.dims()),
                                        BroadcastIndex::Make(b.dims(), y.dims()),
                                        f};
    return ForEach(y.num_elements(), each, StreamOf(args), op);
  });
}

// Adds kernel `name`: y = f(a, b). `name` must be a literal.
template <Takes takes = Takes::kFloats, typename F>
void AddBinary(KernelRegistry& registry, const char* name, F f) {
  registry.Add(name, [=](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesElements<takes>(spec.inputs[0].dtype, refusal)) return nullptr;
    return MakeKernel([=](const KernelArgs& args) { return RunBinary<takes>(args, f, name); });
  });
}

// The term of a gradient at element i of dy. `a` and `b` are null if the term reads neither.
template <typename T, typename Term>
struct GradientTerm {
  const T* dy;
  const T* a;
  const T* b;
  BroadcastIndex a_index, b_index;
  Term term;
  __device__ float operator()(int64_t i) const {
    const float g = ToFloat(dy[i]);
    if (a == nullptr) return term(g, 0.0f, 0.0f);
    return term(g, ToFloat(a[a_index(i)]), ToFloat(b[b_index(i)]));
  }
};

template <typename T, typename Value>
struct StoreValue {
  Value value;
  T* target;
  __device__ void operator()(int64_t i) const { target[i] = FromFloat<T>(value(i)); }
};

// Returns which dimensions of `dy` are summed over for the gradient of an operand.
inline ReduceShape BroadcastSum(const Dims& operand, const Dims& dy) {
  std::vector<bool> summed(dy.size());
  const size_t missing = dy.size() - operand.size();
  for (size_t d = 0; d < dy.size(); ++d) {
    summed[d] = d < missing || (operand[d - missing] == 1 && dy[d] != 1);
  }
  return ReduceShape::Make(dy, summed);
}

// Returns the workspace of SumBroadcast for any of `targets`, in bytes.
inline size_t SumBroadcastBytes(const std::vector<TensorSpec>& targets, const Dims& dy) {
  size_t bytes = 0;
  for (const TensorSpec& target : targets) {
    if (target.dtype == DType::kInvalid) continue;
    bytes = std::max(bytes, BroadcastSum(target.dims, dy).WorkspaceBytes());
  }
  return bytes;
}

// target = sum of value(i) over the elements i of dy along the dimensions in which target is
// broadcast.
template <typename T, typename Value>
KernelStatus SumBroadcast(const KernelArgs& args, const Value& value, const TensorView& dy,
                          const TensorView& target, const char* op) {
  if (target.num_elements() == dy.num_elements()) {
    return ForEach(dy.num_elements(), StoreValue<T, Value>{value, target.as<T>()}, StreamOf(args),
                   op);
  }
  return Reduce(BroadcastSum(target.dims(), dy.dims()), value, StoreScaled<T>{target.as<T>(), 1.0f},
                args.workspace, StreamOf(args), op);
}

// da is the sum of term_a(dy, a, b) over the dimensions in which a is broadcast, db that of term_b
// for b. Inputs are a, b, dy if `saves_inputs`, otherwise only dy.
template <bool saves_inputs, typename TermA, typename TermB>
KernelStatus RunBinaryGradient(const KernelArgs& args, TermA term_a, TermB term_b, const char* op) {
  const TensorView& dy = args.inputs[saves_inputs ? 2 : 0];
  const auto run = [&](auto term, const TensorView& target) {
    if (!target.present() || target.num_elements() == 0) return KernelStatus::Ok();
    return DispatchFloat(dy.dtype(), op, [&](auto type) {
      using T = typename decltype(type)::T;
      GradientTerm<T, decltype(term)> value{dy.as<T>(), nullptr, nullptr, {}, {}, term};
      if constexpr (saves_inputs) {
        value.a = args.inputs[0].as<T>();
        value.b = args.inputs[1].as<T>();
        value.a_index = BroadcastIndex::Make(args.inputs[0].dims(), dy.dims());
        value.b_index = BroadcastIndex::Make(args.inputs[1].dims(), dy.dims());
      }
      return SumBroadcast<T>(args, value, dy, target, op);
    });
  };
  ESPALIER_KERNEL_RETURN_IF_ERROR(run(term_a, args.outputs[0]));
  return args.outputs.size() > 1 ? run(term_b, args.outputs[1]) : KernelStatus::Ok();
}

// Kernel `op`, "<name>_grad": the above. `op` must be a literal.
template <bool saves_inputs, typename TermA, typename TermB>
void AddBinaryGradient(KernelRegistry& registry, const char* op, TermA term_a, TermB term_b) {
  constexpr size_t kDy = saves_inputs ? 2 : 0;
  registry.Add(op, [=](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesFloat(spec.inputs[kDy].dtype, refusal)) return nullptr;
    return MakeKernel(
        [=](const KernelArgs& args) {
          return RunBinaryGradient<saves_inputs>(args, term_a, term_b, op);
        },
        SumBroadcastBytes(spec.outputs, spec.inputs[kDy].dims));
  });
}

}  // namespace espalier
