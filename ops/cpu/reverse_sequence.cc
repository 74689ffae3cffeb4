#include <string>

#include "ops/cpu/labels.h"
#include "ops/cpu/layout/strided.h"
#include "ops/kernel/kernel.h"

namespace espalier {
namespace {

size_t AxisOf(const Attributes& attributes, const char* name, size_t rank) {
  const int64_t axis = attributes.Int(name);
  return static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(rank) : axis);
}

KernelStatus Run(const Attributes& attributes, const TensorView& x, const TensorView& lengths,
                 const TensorView& y) {
  const Dims& dims = x.dims();
  const size_t batch = AxisOf(attributes, "batch_axis", dims.size());
  const size_t time = AxisOf(attributes, "time_axis", dims.size());
  const int64_t size = static_cast<int64_t>(SizeOf(x.dtype())), steps = dims[time];
  const Dims strides = DenseStrides(dims);
  for (int64_t b = 0; b < dims[batch]; ++b) {
    const int64_t length = IntegerAt(lengths, b);
    if (length < 0 || length > steps) {
      return KernelStatus::Error("reverse_sequence: lengths" + PlaceInWhole(lengths, b) + " is " +
                                 std::to_string(length) + ", accepted are 0 to " +
                                 std::to_string(steps));
    }
    // First the steps that change places, then the others.
    const auto copy = [&](int64_t first, int64_t from, int64_t count, int64_t step) {
      Dims part = dims, source = strides;
      part[batch] = 1;
      part[time] = count;
      source[time] *= step;
      const int64_t start = b * strides[batch];
      CopyStrided(part, size, At(x.data, (start + from * strides[time]) * size), source,
                  At(y.data, (start + first * strides[time]) * size), strides);
    };
    copy(0, length - 1, length, -1);
    copy(length, length, steps - length, 1);
  }
  return KernelStatus::Ok();
}

}  // namespace

void RegisterReverseSequenceCpu(KernelRegistry& registry) {
  registry.Add("reverse_sequence", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
      return Run(attributes, args.inputs[0], args.inputs[1], args.outputs[0]);
    });
  });
  // lengths, dy: its own inverse
  registry.Add("reverse_sequence_grad", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
      return Run(attributes, args.inputs[1], args.inputs[0], args.outputs[0]);
    });
  });
}

}  // namespace espalier
