// depth_to_space and space_to_depth.
#pragma once

#include <string>

#include "ops/cuda/runtime/register.h"
#include "ops/cuda/strided.h"
#include "ops/kernel/depth_space.h"

namespace espalier {

// Adds kernels `name` and `name`_grad, which is the inverse permutation. `name` must be a literal.
inline void AddDepthSpaceCopy(KernelRegistry& registry, const char* name, bool to_space) {
  const auto add = [&registry, name](const std::string& op, bool to_space) {
    registry.Add(op, [name, to_space](const KernelSpec& spec, std::string*) {
      const int64_t block = spec.attributes.Int("blocksize");
      const bool channels_first = spec.attributes.String("mode") == "CRD";
      return MakeKernel([=](const KernelArgs& args) {
        const TensorView &x = args.inputs[0], &y = args.outputs[0];
        if (!y.present() || y.num_elements() == 0) return KernelStatus::Ok();
        const DepthSpaceCopy move((to_space ? y : x).dims(), block, channels_first);
        return CopyStrided({x.dtype(), x.data, y.data, move.dims,
                            to_space ? move.depth_strides : move.space_strides,
                            to_space ? move.space_strides : move.depth_strides},
                           static_cast<cudaStream_t>(args.stream), name);
      });
    });
  };
  add(name, to_space);
  add(std::string(name) + "_grad", !to_space);
}

}  // namespace espalier
