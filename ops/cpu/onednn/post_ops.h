// Activations fused into oneDNN primitives as post-ops. For the few files that include dnnl.hpp.
#pragma once

#include <dnnl.hpp>

#include "ops/cpu/simd/activation.h"

namespace espalier {

// Appends the activation. Returns false if oneDNN's differs from ours and the caller must apply it:
// oneDNN's relu turns NaN into 0, which hides that a model diverges.
inline bool IsPostOp(Activation activation) { return activation != Activation::kRelu; }

inline void AppendActivation(Activation activation, dnnl::post_ops* post) {
  using dnnl::algorithm;
  switch (activation) {
    case Activation::kNone:
    case Activation::kRelu:
      return;
    case Activation::kGelu:
      return post->append_eltwise(1.0f, algorithm::eltwise_gelu_erf, 0.0f, 0.0f);
    case Activation::kSilu:
      return post->append_eltwise(1.0f, algorithm::eltwise_swish, 1.0f, 0.0f);
    case Activation::kSigmoid:
      return post->append_eltwise(1.0f, algorithm::eltwise_logistic, 0.0f, 0.0f);
    case Activation::kTanh:
      return post->append_eltwise(1.0f, algorithm::eltwise_tanh, 0.0f, 0.0f);
  }
}

}  // namespace espalier
