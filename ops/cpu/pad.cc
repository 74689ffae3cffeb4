#include "ops/kernel/pad.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/dtype/element.h"
#include "ops/cpu/layout/strided.h"
#include "ops/cpu/threading/parallel.h"

namespace espalier {
namespace {

std::vector<PadDim> PadDims(const Attributes& attributes, const Dims& x) {
  const std::vector<int64_t> pads = attributes.Ints("pads");
  PadMode mode = PadMode::kConstant;
  PadModeFromName(attributes.String("mode"), &mode);
  std::vector<PadDim> dims;
  for (size_t d = 0; d < x.size(); ++d) dims.push_back({mode, x[d], pads[d], pads[x.size() + d]});
  return dims;
}

// Computes the rows of y, each from one row of x by the index map of the last dimension.
template <typename T>
void Pad(std::vector<PadDim> pads, T value, const TensorView& x, const TensorView& y) {
  Dims x_dims = x.dims(), y_dims = y.dims();
  if (pads.empty()) {  // a scalar
    x_dims = y_dims = {1};
    pads.push_back({PadMode::kConstant, 1, 0, 0});
  }
  const size_t last = x_dims.size() - 1;
  const int64_t n = y_dims[last];
  // The elements [low, high) of a row that are copied from x as one run.
  const int64_t low = std::clamp<int64_t>(pads[last].begin, 0, n);
  const int64_t high = std::clamp<int64_t>(pads[last].begin + x_dims[last], low, n);
  std::vector<int64_t> sources(n);
  for (int64_t i = 0; i < n; ++i) sources[i] = pads[last].Source(i);
  const Dims x_strides = DenseStrides(x_dims);
  const T* from = x.as<T>();
  T* to = y.as<T>();
  ParallelFor(NumElements(y_dims) / n, n, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T* target = to + row * n;
      int64_t rest = row, offset = 0;
      for (size_t d = last; d-- > 0 && offset >= 0;) {
        const int64_t s = pads[d].Source(rest % y_dims[d]);
        offset = s < 0 ? -1 : offset + s * x_strides[d];
        rest /= y_dims[d];
      }
      if (offset < 0) {
        std::fill(target, target + n, value);
        continue;
      }
      const T* source = from + offset;
      const auto take = [&](int64_t i) { target[i] = sources[i] < 0 ? value : source[sources[i]]; };
      for (int64_t i = 0; i < low; ++i) take(i);
      if (high > low) std::memcpy(target + low, source + sources[low], (high - low) * sizeof(T));
      for (int64_t i = high; i < n; ++i) take(i);
    }
  });
}

// Computes the rows of dx, each the sum of all rows of dy that were copied from it.
void Gradient(std::vector<PadDim> pads, const TensorView& dy, const TensorView& dx) {
  Dims x_dims = dx.dims(), y_dims = dy.dims();
  if (pads.empty()) {
    x_dims = y_dims = {1};
    pads.push_back({PadMode::kConstant, 1, 0, 0});
  }
  const size_t last = x_dims.size() - 1;
  const int64_t n = x_dims[last], y_n = y_dims[last];
  std::vector<int64_t> sources(y_n);
  for (int64_t i = 0; i < y_n; ++i) sources[i] = pads[last].Source(i);
  const Dims y_strides = DenseStrides(y_dims);
  const float* from = dy.as<float>();
  float* to = dx.as<float>();
  ParallelFor(NumElements(x_dims) / n, n + y_n, [&](int64_t begin, int64_t end) {
    // Offsets in dy of the rows that were copied from one row of x.
    std::vector<int64_t> rows, wider;
    for (int64_t row = begin; row < end; ++row) {
      rows.assign(1, 0);
      int64_t rest = row;
      for (size_t d = last; d-- > 0;) {
        wider.clear();
        for (int part = 0; part < 2; ++part) {
          const PadDim::Row uses = pads[d].Uses(rest % x_dims[d], part);
          for (int64_t k = 0; k < uses.count; ++k) {
            for (int64_t r : rows) {
              wider.push_back(r + (uses.first + k * uses.step) * y_strides[d]);
            }
          }
        }
        rows.swap(wider);
        rest /= x_dims[d];
      }
      float* target = to + row * n;
      std::fill(target, target + n, 0.0f);
      for (int64_t r : rows) {
        for (int64_t i = 0; i < y_n; ++i) {
          if (sources[i] >= 0) target[sources[i]] += from[r + i];
        }
      }
    }
  });
}

}  // namespace

void RegisterPadCpu(KernelRegistry& registry) {
  registry.Add("pad", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
      const TensorView &x = args.inputs[0], &y = args.outputs[0];
      if (y.num_elements() == 0) return KernelStatus::Ok();
      WithElement(x.dtype(), [&](auto element) {
        using Element = decltype(element);
        Pad<typename Element::Storage>(PadDims(attributes, x.dims()),
                                       Element::From(attributes.Float("value")), x, y);
      });
      return KernelStatus::Ok();
    });
  });
  registry.Add("pad_grad", ViaF32([](const KernelSpec& spec, std::string*) {
                 return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
                   const TensorView &dy = args.inputs[0], &dx = args.outputs[0];
                   if (dx.num_elements() == 0) return KernelStatus::Ok();
                   Gradient(PadDims(attributes, dx.dims()), dy, dx);
                   return KernelStatus::Ok();
                 });
               }));
}

}  // namespace espalier
