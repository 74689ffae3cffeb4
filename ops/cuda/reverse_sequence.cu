#include "ops/cuda/element_bits.cuh"
#include "ops/cuda/labels.cuh"
#include "ops/cuda/runtime/cuda_status.h"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/kernel/axis_lines.h"

namespace espalier {
namespace cuda_reverse_sequence {

template <typename T>
struct ReverseElement {
  const T* x;
  T* y;
  Integers lengths;
  int64_t batch_inner, batches, time_inner, steps;
  FaultSink faults;
  __device__ void operator()(int64_t i) const {
    const int64_t batch = i / batch_inner % batches, step = i / time_inner % steps;
    const int64_t length = lengths[batch];
    if (length < 0 || length > steps) {
      faults.Report(FaultKind::kSequenceLength, batch, length, steps);
      y[i] = x[i];
      return;
    }
    y[i] = x[step < length ? i + (length - 1 - 2 * step) * time_inner : i];
  }
};

KernelStatus Run(DeviceContexts& contexts, const Attributes& attributes, const TensorView& x,
                 const TensorView& lengths, const KernelArgs& args) {
  const TensorView& y = args.outputs[0];
  if (!y.present()) return KernelStatus::Ok();
  DeviceContext* context = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(contexts.Current(&context));
  const AxisLines batch(x.dims(), attributes.Int("batch_axis"));
  const AxisLines time(x.dims(), attributes.Int("time_axis"));
  return DispatchBits(y.dtype(), "reverse_sequence", [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(y.num_elements(),
                   ReverseElement<T>{x.as<T>(), y.as<T>(), Integers::Of(lengths), batch.inner,
                                     batch.length, time.inner, time.length, context->faults()},
                   StreamOf(args), "reverse_sequence");
  });
}

}  // namespace cuda_reverse_sequence

void RegisterReverseSequenceCuda(KernelRegistry& registry, DeviceContexts& contexts) {
  using namespace cuda_reverse_sequence;
  registry.Add("reverse_sequence", [&contexts](const KernelSpec& spec, std::string*) {
    return MakeKernel([&contexts, attributes = spec.attributes](const KernelArgs& args) {
      return Run(contexts, attributes, args.inputs[0], args.inputs[1], args);
    });
  });
  // lengths, dy: its own inverse
  registry.Add("reverse_sequence_grad", [&contexts](const KernelSpec& spec, std::string*) {
    return MakeKernel([&contexts, attributes = spec.attributes](const KernelArgs& args) {
      return Run(contexts, attributes, args.inputs[1], args.inputs[0], args);
    });
  });
}

}  // namespace espalier
