#include <algorithm>

#include "ops/cpu/elementwise.h"
#include "ops/cpu/layout/copy.h"

namespace espalier {
namespace {

template <typename T>
void Sum(const KernelArgs& args) {
  constexpr int64_t kBlock = 4096;  // stays in L1 while the inputs are added
  const auto plus = [](T a, T b) { return static_cast<T>(a + b); };
  T* y = args.outputs[0].as<T>();
  const int64_t inputs = static_cast<int64_t>(args.inputs.size());
  ParallelFor(args.outputs[0].num_elements(), inputs, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      const T* sum = args.inputs[0].as<T>() + i;
      for (int64_t k = 1; k < inputs; ++k) {
        MapBinaryRow(plus, sum, 1, args.inputs[k].as<T>() + i, 1, y + i, n);
        sum = y + i;
      }
    }
  });
}

KernelStatus Run(const KernelArgs& args) {
  const TensorView& y = args.outputs[0];
  if (args.inputs.size() == 1) {
    CopyBytes(args.inputs[0].data, y.data, y.spec.bytes());
  } else if (y.dtype() == DType::kI32) {
    Sum<uint32_t>(args);
  } else if (y.dtype() == DType::kI64) {
    Sum<uint64_t>(args);
  } else {
    Sum<float>(args);
  }
  return KernelStatus::Ok();
}

}  // namespace

void RegisterAddNCpu(KernelRegistry& registry) {
  registry.Add("add_n", ViaF32([](const KernelSpec&, std::string*) { return MakeKernel(Run); }));
  registry.Add("add_n_grad", [](const KernelSpec&, std::string*) {
    return MakeKernel([](const KernelArgs& args) {
      for (const TensorView& dx : args.outputs) {
        if (dx.present()) CopyBytes(args.inputs[0].data, dx.data, dx.spec.bytes());
      }
      return KernelStatus::Ok();
    });
  });
}

}  // namespace espalier
