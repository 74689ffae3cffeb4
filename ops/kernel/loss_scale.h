// Dynamic loss scaling (Micikevicius et al., "Mixed precision training", ICLR 2018). The loss is
// multiplied by a power of two before the backward pass, so that f16 gradients do not underflow,
// and the gradients are divided by it before they are used. If they overflow, the step is skipped
// and the scale halved. Runs on host and device.
#pragma once

#include <cmath>

#include "ops/kernel/host_device.h"

namespace espalier {

// State between steps, f32[3], initially zero. The scale is initial * 2^exponent.
struct LossScaleState {
  float exponent;
  float since_change;  // updates since the scale last changed
  float updates;       // number of updates so far: the optimizer's own step
};

struct LossScaling {
  float initial;          // a power of two, so that scaling never rounds
  float growth_interval;  // updates after which the scale doubles; 0: it never changes
  float max_norm;         // clips the gradients' norm; 0: no clipping

  ESPALIER_HOST_DEVICE float ScaleOf(const LossScaleState& state) const {
    return std::ldexp(initial, static_cast<int>(state.exponent));
  }

  struct Result {
    float factor = 0;  // factor for the gradients of the scaled loss
    float norm = 0;    // norm of the unscaled gradients
    float step = 0;    // 1-based step of the update; 0: skip it
  };

  // `squares`: the sum of squares of the scaled gradients.
  ESPALIER_HOST_DEVICE Result Finish(float squares, LossScaleState* state) const {
    const float scale = ScaleOf(*state);
    Result result;
    result.norm = std::sqrt(squares) / scale;
    if (!(squares <= 3.402823466e38f)) {  // infinite or NaN
      state->since_change = 0;
      if (growth_interval > 0 && scale > 0x1p-24f) state->exponent -= 1;
      return result;
    }
    result.factor = 1 / scale;
    if (max_norm > 0 && result.norm > max_norm) result.factor *= max_norm / (result.norm + 1e-6f);
    result.step = state->updates += 1;
    state->since_change += 1;
    if (growth_interval > 0 && state->since_change >= growth_interval) {
      state->since_change = 0;
      if (scale < 0x1p100f) state->exponent += 1;
    }
    return result;
  }
};

}  // namespace espalier
