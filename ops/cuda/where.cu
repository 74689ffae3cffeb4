#include "ops/cuda/binary.cuh"

namespace espalier {
namespace cuda_where {

template <typename T>
struct Choose {
  const uint8_t* condition;
  const T* a;
  const T* b;
  T* y;
  BroadcastIndex condition_index, a_index, b_index;
  __device__ void operator()(int64_t i) const {
    y[i] = condition[condition_index(i)] != 0 ? a[a_index(i)] : b[b_index(i)];
  }
};

// Elements are only moved: T is any type of their size.
template <typename T>
KernelStatus Where(const KernelArgs& args) {
  const TensorView &condition = args.inputs[0], &a = args.inputs[1], &b = args.inputs[2];
  const TensorView& y = args.outputs[0];
  const Choose<T> each{condition.as<uint8_t>(),
                       a.as<T>(),
                       b.as<T>(),
                       y.as<T>(),
                       BroadcastIndex::Make(condition.dims(), y.dims()),
                       BroadcastIndex::Make(a.dims(), y.dims()),
                       BroadcastIndex::Make(b.dims(), y.dims())};
  return ForEach(y.num_elements(), each, StreamOf(args), "where");
}

KernelStatus Run(const KernelArgs& args) {
  if (!args.outputs[0].present()) return KernelStatus::Ok();
  switch (SizeOf(args.outputs[0].dtype())) {
    case 1:
      return Where<uint8_t>(args);
    case 2:
      return Where<uint16_t>(args);
    case 4:
      return Where<uint32_t>(args);
    default:
      return Where<uint64_t>(args);
  }
}

// dy where the condition is `wanted`, else 0.
template <typename T>
struct Chosen {
  const uint8_t* condition;
  const T* dy;
  BroadcastIndex condition_index;
  bool wanted;
  __device__ float operator()(int64_t i) const {
    return (condition[condition_index(i)] != 0) == wanted ? ToFloat(dy[i]) : 0.0f;
  }
};

KernelStatus RunGradient(const KernelArgs& args) {
  const TensorView &condition = args.inputs[0], &dy = args.inputs[1];
  for (size_t k = 0; k < args.outputs.size(); ++k) {
    const TensorView& target = args.outputs[k];
    if (!target.present() || target.num_elements() == 0) continue;
    ESPALIER_KERNEL_RETURN_IF_ERROR(DispatchFloat(dy.dtype(), "where_grad", [&](auto type) {
      using T = typename decltype(type)::T;
      const Chosen<T> value{condition.as<uint8_t>(), dy.as<T>(),
                            BroadcastIndex::Make(condition.dims(), dy.dims()), k == 0};
      return SumBroadcast<T>(args, value, dy, target, "where_grad");
    }));
  }
  return KernelStatus::Ok();
}

}  // namespace cuda_where

void RegisterWhereCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_where;
  registry.Add("where", [](const KernelSpec&, std::string*) { return MakeKernel(Run); });
  registry.Add(
      "where_grad", [](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
        if (!TakesFloat(spec.inputs[1].dtype, refusal)) return nullptr;
        return MakeKernel(RunGradient, SumBroadcastBytes(spec.outputs, spec.inputs[1].dims));
      });
}

}  // namespace espalier
