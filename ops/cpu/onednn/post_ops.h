// Activations that oneDNN applies while it stores a result. For the few files that include
// dnnl.hpp.
#pragma once

#include <dnnl.hpp>

#include "ops/cpu/activation.h"

namespace espalier {

// False for what oneDNN would not apply as it is defined, and the caller must: its relu makes 0 of
// NaN, which hides that a model diverges.
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
