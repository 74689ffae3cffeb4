// The optional input `example_weights` of losses and metrics.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/kernel/kernel.h"

namespace espalier {

// Factors of the summands of a loss (elements, rows or labels, in row-major order), one per
// example; 1 without the input.
class ExampleWeights {
 public:
  // `input` is the index of example_weights; a gradient kernel has dy behind it. `summands` is
  // their number.
  ExampleWeights(const KernelArgs& args, size_t input, bool gradient, int64_t summands) {
    if (input + (gradient ? 1 : 0) >= args.inputs.size()) return;
    if (!args.inputs[input].present()) return;
    weights_ = args.inputs[input].as<float>();
    per_example_ =
        std::max<int64_t>(1, summands / std::max<int64_t>(1, args.inputs[input].num_elements()));
  }

  bool present() const { return weights_ != nullptr; }
  int64_t per_example() const { return per_example_; }
  double operator[](int64_t summand) const {
    return weights_ != nullptr ? static_cast<double>(weights_[summand / per_example_]) : 1.0;
  }
  // Returns the number of summands from `begin` on, at most `most`, that belong to one example.
  int64_t Run(int64_t begin, int64_t most) const {
    if (weights_ == nullptr) return most;
    return std::min(most, per_example_ - begin % per_example_);
  }

 private:
  const float* weights_ = nullptr;
  int64_t per_example_ = 1;
};

}  // namespace espalier
