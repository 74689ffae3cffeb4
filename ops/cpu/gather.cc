#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "ops/cpu/elementwise.h"
#include "ops/cpu/labels.h"
#include "ops/cpu/layout/axis_slices.h"
#include "ops/cpu/threading/parallel.h"

namespace espalier {
namespace {

// Views x as [outer, rows, inner]: indices select rows.
struct Lookup {
  int64_t outer = 1, rows = 1, inner = 1;

  Lookup(const Dims& x, size_t axis) : rows(x[axis]) {
    for (size_t d = 0; d < axis; ++d) outer *= x[d];
    for (size_t d = axis + 1; d < x.size(); ++d) inner *= x[d];
  }
};

// Normalizes the indices to be non-negative, or returns an error that names the first one out of
// range.
KernelStatus ReadIndices(const TensorView& indices, int64_t rows, std::vector<int64_t>* out) {
  out->resize(indices.num_elements());
  for (size_t i = 0; i < out->size(); ++i) {
    int64_t index = IntegerAt(indices, static_cast<int64_t>(i));
    if (index < -rows || index >= rows) {
      return KernelStatus::Error("gather: indices" +
                                 PlaceInWhole(indices, static_cast<int64_t>(i)) + " is " +
                                 std::to_string(index) + ", accepted are " + std::to_string(-rows) +
                                 " to " + std::to_string(rows - 1));
    }
    (*out)[i] = index < 0 ? index + rows : index;
  }
  return KernelStatus::Ok();
}

KernelStatus Gather(const KernelArgs& args, size_t axis) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  const Lookup lookup(x.dims(), axis);
  std::vector<int64_t> indices;
  if (KernelStatus status = ReadIndices(args.inputs[1], lookup.rows, &indices); !status.ok()) {
    return status;
  }
  const int64_t count = static_cast<int64_t>(indices.size());
  const int64_t bytes = lookup.inner * static_cast<int64_t>(SizeOf(x.dtype()));
  ParallelFor(lookup.outer * count, lookup.inner, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / count * lookup.rows + indices[i % count];
      std::memcpy(At(y.data, i * bytes), At(x.data, row * bytes), bytes);
    }
  });
  return KernelStatus::Ok();
}

// Rows that are looked up several times are summed in the order of the indices: threads split the
// elements of dx, never the indices.
KernelStatus Scatter(const KernelArgs& args, size_t axis) {
  const TensorView &dy = args.inputs[1], &dx = args.outputs[0];
  const Lookup lookup(dx.dims(), axis);
  std::vector<int64_t> indices;
  if (KernelStatus status = ReadIndices(args.inputs[0], lookup.rows, &indices); !status.ok()) {
    return status;
  }
  const int64_t count = static_cast<int64_t>(indices.size());
  std::memset(dx.data, 0, dx.spec.bytes());
  const auto add = [&](int64_t o, int64_t first, int64_t last) {
    const auto plus = [](float a, float b) { return a + b; };
    for (int64_t j = 0; j < count; ++j) {
      float* target = dx.as<float>() + (o * lookup.rows + indices[j]) * lookup.inner + first;
      const float* source = dy.as<float>() + (o * count + j) * lookup.inner + first;
      MapBinaryRow(plus, target, 1, source, 1, target, last - first);
    }
  };
  if (lookup.outer != 1) {  // none, too
    ParallelFor(lookup.outer, count * lookup.inner, [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) add(o, 0, lookup.inner);
    });
  } else {
    ParallelBlocks(lookup.inner,
                   std::max<int64_t>(64, kParallelGrain / std::max<int64_t>(count, 1)),
                   [&](int64_t begin, int64_t end) { add(0, begin, end); });
  }
  return KernelStatus::Ok();
}

}  // namespace

void RegisterGatherCpu(KernelRegistry& registry) {
  registry.Add("gather", [](const KernelSpec& spec, std::string*) {
    const size_t axis = AxisOf(spec.attributes, spec.inputs[0].dims.size());
    return MakeKernel([axis](const KernelArgs& args) { return Gather(args, axis); });
  });
  registry.Add("gather_grad", ViaF32([](const KernelSpec& spec, std::string*) {
                 const size_t axis = AxisOf(spec.attributes, spec.outputs[0].dims.size());
                 return MakeKernel([axis](const KernelArgs& args) { return Scatter(args, axis); });
               }));
}

}  // namespace espalier
