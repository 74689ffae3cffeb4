// arg_min and arg_max: the index of the extreme element of each line.
#pragma once

#include "ops/cuda/reduce_min_max.cuh"
#include "ops/kernel/axis_lines.h"

namespace espalier {

// The extreme element of a line so far; place -1: none.
template <typename V>
struct Candidate {
  V value = V(0);
  int64_t place = -1;

  template <bool largest>
  __device__ void Take(V other, int64_t at, bool last) {
    if (at < 0) return;
    const bool beyond = place < 0 || Beyond<largest>(other, value);
    const bool equal = !beyond && !Beyond<largest>(value, other);
    if (beyond || (equal && (last ? at > place : at < place))) {
      value = other;
      place = at;
    }
  }
};

// One block per contiguous line.
template <bool largest, typename T>
__global__ void __launch_bounds__(kThreads)
    ArgLineKernel(const T* x, int64_t* places, int64_t length, bool last) {
  using V = NumberType<T>;
  __shared__ V values[kThreads];
  __shared__ int64_t at[kThreads];
  const NumberOf<T> number{x + blockIdx.x * length};
  Candidate<V> best;
  for (int64_t j = threadIdx.x; j < length; j += kThreads) {
    best.template Take<largest>(number(j), j, last);
  }
  values[threadIdx.x] = best.value;
  at[threadIdx.x] = best.place;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      best.template Take<largest>(values[threadIdx.x + half], at[threadIdx.x + half], last);
      values[threadIdx.x] = best.value;
      at[threadIdx.x] = best.place;
    }
  }
  if (threadIdx.x == 0) places[blockIdx.x] = best.place;
}

// One thread per line; adjacent threads read adjacent elements (coalesced).
template <bool largest, typename T>
struct ArgColumn {
  NumberOf<T> number;
  int64_t* places;
  int64_t length, inner;
  bool last;
  __device__ void operator()(int64_t line) const {
    const int64_t start = line / inner * length * inner + line % inner;
    Candidate<NumberType<T>> best;
    for (int64_t j = 0; j < length; ++j) {
      best.template Take<largest>(number(start + j * inner), j, last);
    }
    places[line] = best.place;
  }
};

// `name` must be a literal.
template <bool largest>
void AddArgExtreme(KernelRegistry& registry, const char* name) {
  registry.Add(name, [=](const KernelSpec& spec, std::string*) {
    const int64_t axis = spec.attributes.Int("axis");
    const bool last = spec.attributes.Bool("select_last");
    return MakeKernel([=](const KernelArgs& args) {
      const TensorView &x = args.inputs[0], &y = args.outputs[0];
      if (y.num_elements() == 0) return KernelStatus::Ok();
      const AxisLines lines(x.dims(), axis);
      return DispatchAll(x.dtype(), name, [&](auto type) {
        using T = typename decltype(type)::T;
        if (lines.inner > 1) {
          return ForEach(
              lines.count(),
              ArgColumn<largest, T>{{x.as<T>()}, y.as<int64_t>(), lines.length, lines.inner, last},
              StreamOf(args), name);
        }
        ArgLineKernel<largest, T>
            <<<static_cast<unsigned>(lines.outer), kThreads, 0, StreamOf(args)>>>(
                x.as<T>(), y.as<int64_t>(), lines.length, last);
        return LaunchStatus(name);
      });
    });
  });
}

}  // namespace espalier
