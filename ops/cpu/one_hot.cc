#include <algorithm>

#include "ops/cpu/dtype/element.h"
#include "ops/cpu/labels.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/kernel/axis_lines.h"

namespace espalier {
namespace {

template <typename T>
void Set(const TensorView& indices, const AxisLines& lines, T on, T off, T* y) {
  const int64_t depth = lines.length, inner = lines.inner;
  ParallelFor(lines.outer, depth * inner, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      T* block = y + o * depth * inner;
      std::fill(block, block + depth * inner, off);
      for (int64_t i = 0; i < inner; ++i) {
        const int64_t index = IntegerAt(indices, o * inner + i);
        if (index < -depth || index >= depth) continue;
        block[(index < 0 ? index + depth : index) * inner + i] = on;
      }
    }
  });
}

}  // namespace

void RegisterOneHotCpu(KernelRegistry& registry) {
  registry.Add("one_hot", [](const KernelSpec& spec, std::string*) {
    return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
      const TensorView& y = args.outputs[0];
      WithElement(y.dtype(), [&](auto element) {
        using Element = decltype(element);
        Set(args.inputs[0], AxisLines(y.dims(), attributes.Int("axis")),
            Element::From(attributes.Float("on")), Element::From(attributes.Float("off")),
            y.as<typename Element::Storage>());
      });
      return KernelStatus::Ok();
    });
  });
}

}  // namespace espalier
