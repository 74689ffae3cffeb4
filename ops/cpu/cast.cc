#include <cmath>
#include <limits>
#include <type_traits>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/dtype/element.h"
#include "ops/cpu/layout/copy.h"
#include "ops/cpu/threading/parallel.h"

namespace espalier {
namespace {

void Convert(const TensorView& from, const TensorView& to) {
  if (from.dtype() == to.dtype()) {
    CopyBytes(from.data, to.data, to.spec.bytes());
    return;
  }
  const int64_t elements = to.num_elements();
  if (IsFloat(from.dtype()) && to.dtype() == DType::kF32) {
    ToF32(from.dtype(), from.data, to.as<float>(), elements);
  } else if (from.dtype() == DType::kF32 && IsFloat(to.dtype())) {
    FromF32(to.dtype(), from.as<float>(), to.data, elements);
  } else {
    WithElement(from.dtype(), [&](auto source) {
      WithElement(to.dtype(), [&](auto target) {
        using Source = decltype(source);
        using Target = decltype(target);
        const auto* x = from.as<typename Source::Storage>();
        auto* y = to.as<typename Target::Storage>();
        ParallelFor(elements, 1, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) y[i] = Target::From(Source::Value(x[i]));
        });
      });
    });
  }
}

}  // namespace

void RegisterCastCpu(KernelRegistry& registry) {
  const KernelFactory factory = [](const KernelSpec&, std::string*) {
    return MakeKernel([](const KernelArgs& args) {
      Convert(args.inputs[0], args.outputs[0]);
      return KernelStatus::Ok();
    });
  };
  registry.Add("cast", factory);
  registry.Add("cast_grad", factory);
}

}  // namespace espalier
