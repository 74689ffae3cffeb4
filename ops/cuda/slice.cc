#include <algorithm>

#include "ops/cuda/register.h"
#include "ops/cuda/status.h"
#include "ops/cuda/strided.h"

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

void* At(void* data, int64_t elements, DType dtype) {
  return static_cast<char*>(data) + elements * static_cast<int64_t>(SizeOf(dtype));
}

}  // namespace

void RegisterSliceCuda(KernelRegistry& registry, DeviceContexts&) {
  registry.Add("slice", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
      const TensorView &x = args.inputs[0], &y = args.outputs[0];
      if (y.num_elements() == 0) return KernelStatus::Ok();
      const Window window = WindowOf(attributes, x.dims());
      return CopyStrided({x.dtype(), At(x.data, window.start, x.dtype()), y.data, y.dims(),
                          window.strides, DenseStrides(y.dims())},
                         static_cast<cudaStream_t>(args.stream), "slice");
    });
  });
  registry.Add("slice_grad", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
      const TensorView &dy = args.inputs[0], &dx = args.outputs[0];
      if (!dx.present()) return KernelStatus::Ok();
      const cudaStream_t stream = static_cast<cudaStream_t>(args.stream);
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          FillOnStream(dx.data, dx.dtype(), dx.num_elements(), 0, stream));
      if (dy.num_elements() == 0) return KernelStatus::Ok();
      const Window window = WindowOf(attributes, dx.dims());
      return CopyStrided({dx.dtype(), dy.data, At(dx.data, window.start, dx.dtype()), dy.dims(),
                          DenseStrides(dy.dims()), window.strides},
                         stream, "slice_grad");
    });
  });
}

}  // namespace espalier
