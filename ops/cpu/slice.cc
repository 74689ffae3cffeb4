#include <algorithm>
#include <cstring>

#include "ops/cpu/strided.h"
#include "ops/kernel/kernel.h"

namespace espalier {
namespace {

// Where the slice of a tensor of shape `dims` begins, and its strides there, in elements.
struct Window {
  int64_t start = 0;
  Dims strides;
};

Window WindowOf(const Attributes& attributes, const Dims& dims) {
  Window window{0, DenseStrides(dims)};
  const Dims dense = window.strides;
  const std::vector<int64_t> axes = attributes.Ints("axes"), starts = attributes.Ints("starts"),
                             steps = attributes.Ints("steps");
  const int64_t rank = static_cast<int64_t>(dims.size());
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = axes[i] < 0 ? axes[i] + rank : axes[i];
    int64_t start = starts[i];
    if (start < 0) start = start < -dims[axis] ? 0 : start + dims[axis];
    window.start += std::min(start, dims[axis]) * dense[axis];
    // A step beyond the dimension takes one element; its stride is never used and must not
    // overflow.
    if (!steps.empty()) window.strides[axis] *= std::min(steps[i], dims[axis] + 1);
  }
  return window;
}

}  // namespace

void RegisterSliceCpu(KernelRegistry& registry) {
  registry.Add("slice", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
      const TensorView &x = args.inputs[0], &y = args.outputs[0];
      if (y.num_elements() == 0) return KernelStatus::Ok();
      const Window window = WindowOf(attributes, x.dims());
      const size_t size = SizeOf(x.dtype());
      CopyStrided(y.dims(), size, At(x.data, window.start * static_cast<int64_t>(size)),
                  window.strides, y.data, DenseStrides(y.dims()));
      return KernelStatus::Ok();
    });
  });
  registry.Add("slice_grad", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
      const TensorView &dy = args.inputs[0], &dx = args.outputs[0];
      std::memset(dx.data, 0, dx.spec.bytes());
      if (dy.num_elements() == 0) return KernelStatus::Ok();
      const Window window = WindowOf(attributes, dx.dims());
      const size_t size = SizeOf(dx.dtype());
      CopyStrided(dy.dims(), size, dy.data, DenseStrides(dy.dims()),
                  At(dx.data, window.start * static_cast<int64_t>(size)), window.strides);
      return KernelStatus::Ok();
    });
  });
}

}  // namespace espalier
