// Pooling of NCHW planes over sliding or adaptive windows, with PyTorch's rules for ties and
// borders. The gradient is gathered per element of x, windows in row-major order: no atomics.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"

namespace espalier {

enum class PoolKind { kMax, kAverage, kLp };

// Dimension 0 is the height, 1 the width.
struct Windows {
  bool adaptive = false, include_pad = false;
  int64_t kernel[2] = {1, 1}, stride[2] = {1, 1}, dilation[2] = {1, 1}, pad[4] = {};
  int64_t x_size[2], y_size[2];

  static Windows Adaptive(const Dims& x, const Dims& y) {
    Windows w;
    w.adaptive = true;
    for (int d = 0; d < 2; ++d) {
      w.x_size[d] = x[2 + d];
      w.y_size[d] = y[2 + d];
    }
    return w;
  }
  static Windows Sliding(const Attributes& a, const Dims& x, const Dims& y) {
    Windows w = Adaptive(x, y);
    w.adaptive = false;
    w.include_pad = a.Bool("count_include_pad");
    const std::vector<int64_t> kernel = a.Ints("kernel"), strides = a.Ints("strides", {1, 1}),
                               dilations = a.Ints("dilations", {1, 1}),
                               pads = a.Ints("pads", {0, 0, 0, 0});
    for (int d = 0; d < 2; ++d) {
      w.kernel[d] = kernel[d];
      w.stride[d] = strides[d];
      w.dilation[d] = dilations[d];
    }
    for (int i = 0; i < 4; ++i) w.pad[i] = pads[i];
    return w;
  }

  __device__ int64_t Begin(int d, int64_t i) const { return i * stride[d] - pad[d]; }
  // The elements of window i along dimension d: First, First + dilation, ... below End.
  __device__ int64_t First(int d, int64_t i) const {
    if (adaptive) return i * x_size[d] / y_size[d];
    const int64_t begin = Begin(d, i);
    return begin >= 0 ? begin : begin + (-begin + dilation[d] - 1) / dilation[d] * dilation[d];
  }
  __device__ int64_t End(int d, int64_t i) const {
    if (adaptive) return ((i + 1) * x_size[d] + y_size[d] - 1) / y_size[d];
    return ::min(Begin(d, i) + (kernel[d] - 1) * dilation[d] + 1, x_size[d]);
  }
  // Positions along dimension d that count for the average; those that ceil_mode adds beyond the
  // pads do not.
  __device__ int64_t Cells(int d, int64_t i) const {
    const int64_t first = include_pad ? Begin(d, i) : First(d, i);
    const int64_t end =
        include_pad ? ::min(Begin(d, i) + (kernel[d] - 1) * dilation[d] + 1, x_size[d] + pad[2 + d])
                    : End(d, i);
    return end > first ? (end - first + dilation[d] - 1) / dilation[d] : 0;
  }
  __device__ float Divisor(int64_t i, int64_t j) const {
    return static_cast<float>(::max(int64_t{1}, Cells(0, i) * Cells(1, j)));
  }
  // Windows that may hold coordinate h of dimension d: [FirstWindow, EndWindow), if Holds.
  __device__ int64_t FirstWindow(int d, int64_t h) const {
    if (adaptive) return h * y_size[d] / x_size[d];
    const int64_t past = h + pad[d] - (kernel[d] - 1) * dilation[d] - 1;
    return past < 0 ? 0 : past / stride[d] + 1;
  }
  __device__ int64_t EndWindow(int d, int64_t h) const {
    if (adaptive) return ((h + 1) * y_size[d] + x_size[d] - 1) / x_size[d];
    return ::min((h + pad[d]) / stride[d] + 1, y_size[d]);
  }
  __device__ bool Holds(int d, int64_t i, int64_t h) const {
    const int64_t first = First(d, i);
    return h >= first && h < End(d, i) && (h - first) % dilation[d] == 0;
  }

  __device__ int64_t x_area() const { return x_size[0] * x_size[1]; }
  __device__ int64_t y_area() const { return y_size[0] * y_size[1]; }

  // Returns the index in the plane of the first maximum of window (i, j) in row-major order; a NaN
  // wins. Returns -1 for a window that contains only padding.
  template <typename T>
  __device__ int64_t ArgMax(const T* plane, int64_t i, int64_t j) const {
    int64_t best = -1;
    float most = 0;
    for (int64_t r = First(0, i); r < End(0, i); r += dilation[0]) {
      for (int64_t c = First(1, j); c < End(1, j); c += dilation[1]) {
        const float value = ToFloat(plane[r * x_size[1] + c]);
        if (best < 0 || value > most || value != value) {
          best = r * x_size[1] + c;
          most = value;
        }
      }
    }
    return best;
  }
};

template <typename T>
struct PoolForward {
  Windows w;
  PoolKind kind;
  float p;
  const T* x;
  T* y;
  __device__ void operator()(int64_t at) const {
    const int64_t j = at % w.y_size[1], i = at / w.y_size[1] % w.y_size[0];
    const T* plane = x + at / w.y_area() * w.x_area();
    if (kind == PoolKind::kMax) {
      const int64_t best = w.ArgMax(plane, i, j);
      y[at] = best < 0 ? FromFloat<T>(-INFINITY) : plane[best];
      return;
    }
    float sum = 0;
    for (int64_t r = w.First(0, i); r < w.End(0, i); r += w.dilation[0]) {
      for (int64_t c = w.First(1, j); c < w.End(1, j); c += w.dilation[1]) {
        const float value = ToFloat(plane[r * w.x_size[1] + c]);
        sum += kind == PoolKind::kAverage ? value : Power(fabsf(value), p);
      }
    }
    y[at] = FromFloat<T>(kind == PoolKind::kAverage ? sum / w.Divisor(i, j) : Power(sum, 1 / p));
  }

  static __device__ float Power(float value, float exponent) {
    if (exponent == 1.0f) return value;
    if (exponent == 2.0f) return value * value;
    if (exponent == 0.5f) return sqrtf(value);
    return powf(value, exponent);
  }
};

// The element of its plane that each window selects.
template <typename T>
struct PoolChoose {
  Windows w;
  const T* x;
  int64_t* chosen;
  __device__ void operator()(int64_t at) const {
    const int64_t j = at % w.y_size[1], i = at / w.y_size[1] % w.y_size[0];
    chosen[at] = w.ArgMax(x + at / w.y_area() * w.x_area(), i, j);
  }
};

template <typename T>
struct PoolBackward {
  Windows w;
  PoolKind kind;
  float p;
  const int64_t* chosen;  // kMax
  const T* x;             // kLp, as y
  const T* y;
  const T* dy;
  T* dx;
  __device__ void operator()(int64_t at) const {
    const int64_t in_plane = at % w.x_area();
    const int64_t column = in_plane % w.x_size[1], row = in_plane / w.x_size[1];
    const int64_t plane = at / w.x_area() * w.y_area();
    float sum = 0;
    for (int64_t i = w.FirstWindow(0, row); i < w.EndWindow(0, row); ++i) {
      if (!w.Holds(0, i, row)) continue;
      for (int64_t j = w.FirstWindow(1, column); j < w.EndWindow(1, column); ++j) {
        if (!w.Holds(1, j, column)) continue;
        const int64_t window = plane + i * w.y_size[1] + j;
        const float gradient = ToFloat(dy[window]);
        if (kind == PoolKind::kMax) {
          if (chosen[window] == in_plane) sum += gradient;
        } else if (kind == PoolKind::kAverage) {
          sum += gradient / w.Divisor(i, j);
        } else {
          const float norm = ToFloat(y[window]);
          if (norm > 0) sum += gradient * powf(norm, 1 - p);
        }
      }
    }
    if (kind == PoolKind::kLp) {
      const float value = ToFloat(x[at]);
      const float magnitude = p == 1.0f ? 1.0f : powf(fabsf(value), p - 1);
      sum *= value > 0 ? magnitude : value < 0 ? -magnitude : 0.0f;
    }
    dx[at] = FromFloat<T>(sum);
  }
};

inline KernelStatus RunPool(const KernelArgs& args, const Windows& windows, PoolKind kind, float p,
                            const char* op) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  if (!y.present()) return KernelStatus::Ok();
  return DispatchFloat(x.dtype(), op, [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(y.num_elements(), PoolForward<T>{windows, kind, p, x.as<T>(), y.as<T>()},
                   StreamOf(args), op);
  });
}

// x, y (kLp alone), dy -> dx. The workspace holds one i64 per element of dy for kMax.
inline KernelStatus RunPoolGradient(const KernelArgs& args, const Windows& windows, PoolKind kind,
                                    float p, const TensorView* y, const TensorView& dy,
                                    const char* op) {
  const TensorView &x = args.inputs[0], &dx = args.outputs[0];
  if (!dx.present()) return KernelStatus::Ok();
  int64_t* chosen = kind == PoolKind::kMax ? static_cast<int64_t*>(args.workspace) : nullptr;
  return DispatchFloat(x.dtype(), op, [&](auto type) {
    using T = typename decltype(type)::T;
    if (kind == PoolKind::kMax) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(ForEach(
          dy.num_elements(), PoolChoose<T>{windows, x.as<T>(), chosen}, StreamOf(args), op));
    }
    return ForEach(dx.num_elements(),
                   PoolBackward<T>{windows, kind, p, chosen, x.as<T>(),
                                   y == nullptr ? nullptr : y->as<T>(), dy.as<T>(), dx.as<T>()},
                   StreamOf(args), op);
  });
}

inline size_t PoolGradientBytes(PoolKind kind, const TensorSpec& dy) {
  return kind == PoolKind::kMax ? static_cast<size_t>(dy.num_elements()) * sizeof(int64_t) : 0;
}

}  // namespace espalier
