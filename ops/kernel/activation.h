// The attribute `activation`, which fuses an activation into an operator. Standard library only.
#pragma once

#include <string>

#include "ops/kernel/attributes.h"

namespace espalier {

enum class Activation { kNone, kRelu, kGelu, kSilu, kSigmoid, kTanh };

inline Activation ActivationOf(const Attributes& attributes) {
  const std::string name = attributes.String("activation", "none");
  if (name == "relu") return Activation::kRelu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "silu") return Activation::kSilu;
  if (name == "sigmoid") return Activation::kSigmoid;
  if (name == "tanh") return Activation::kTanh;
  return Activation::kNone;
}

// Whether the gradient is computed from the output y; otherwise it is computed from the input x.
inline bool GradientUsesOutput(Activation activation) {
  return activation == Activation::kRelu || activation == Activation::kSigmoid ||
         activation == Activation::kTanh;
}

}  // namespace espalier
