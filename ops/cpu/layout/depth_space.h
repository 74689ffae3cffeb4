// depth_to_space and space_to_depth.
#pragma once

#include <string>

#include "ops/cpu/layout/strided.h"
#include "ops/kernel/depth_space.h"
#include "ops/kernel/kernel.h"

namespace espalier {

// Adds kernels `name` and `name`_grad, which is the inverse permutation.
inline void AddDepthSpaceCopy(KernelRegistry& registry, const std::string& name, bool to_space) {
  const auto add = [&registry](const std::string& op, bool to_space) {
    registry.Add(op, [to_space](const KernelSpec& spec, std::string*) {
      const int64_t block = spec.attributes.Int("blocksize");
      const bool channels_first = spec.attributes.String("mode") == "CRD";
      return MakeKernel([=](const KernelArgs& args) {
        const TensorView &x = args.inputs[0], &y = args.outputs[0];
        const DepthSpaceCopy move((to_space ? y : x).dims(), block, channels_first);
        CopyStrided(move.dims, SizeOf(x.dtype()), x.data,
                    to_space ? move.depth_strides : move.space_strides, y.data,
                    to_space ? move.space_strides : move.depth_strides);
        return KernelStatus::Ok();
      });
    });
  };
  add(name, to_space);
  add(name + "_grad", !to_space);
}

}  // namespace espalier
