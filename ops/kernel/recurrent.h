// The recurrent operators rnn, gru and lstm: the attributes and activations that the kernels of all
// backends read.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/kernel/host_device.h"
#include "ops/kernel/kernel.h"

namespace espalier::recurrent {

enum class Cell { kRnn, kGru, kLstm };

constexpr int Gates(Cell cell) { return cell == Cell::kRnn ? 1 : cell == Cell::kGru ? 3 : 4; }
constexpr int Activations(Cell cell) { return cell == Cell::kRnn ? 1 : cell == Cell::kGru ? 2 : 3; }

enum class Function {
  kTanh,
  kSigmoid,
  kRelu,
  kAffine,
  kLeakyRelu,
  kThresholdedRelu,
  kScaledTanh,
  kHardSigmoid,
  kElu,
  kSoftsign,
  kSoftplus
};

struct FunctionInfo {
  const char* name;
  float alpha, beta;  // defaults
};
// By Function.
constexpr FunctionInfo kFunctions[] = {
    {"tanh", 0, 0},
    {"sigmoid", 0, 0},
    {"relu", 0, 0},
    {"affine", 1, 0},
    {"leaky_relu", 0.01f, 0},
    {"thresholded_relu", 1, 0},
    {"scaled_tanh", 1, 1},
    {"hard_sigmoid", 0.2f, 0.5f},
    {"elu", 1, 0},
    {"softsign", 0, 0},
    {"softplus", 0, 0},
};
constexpr int kNumFunctions = sizeof kFunctions / sizeof kFunctions[0];

// Any activation, its argument clipped to [-clip, clip].
struct AnyActivation {
  Function function = Function::kTanh;
  float alpha = 0, beta = 0;
  float clip = INFINITY;

  ESPALIER_HOST_DEVICE float operator()(float given) const {
    const float x = given > clip ? clip : given < -clip ? -clip : given;
    switch (function) {
      case Function::kTanh:
        return tanhf(x);
      case Function::kSigmoid:
        return 1.0f / (1.0f + expf(-x));
      case Function::kRelu:
        return x < 0.0f ? 0.0f : x;
      case Function::kAffine:
        return alpha * x + beta;
      case Function::kLeakyRelu:
        return x < 0.0f ? alpha * x : x;
      case Function::kThresholdedRelu:
        return x > alpha ? x : 0.0f;
      case Function::kScaledTanh:
        return alpha * tanhf(beta * x);
      case Function::kHardSigmoid:
        return fminf(1.0f, fmaxf(0.0f, alpha * x + beta));
      case Function::kElu:
        return x < 0.0f ? alpha * expm1f(x) : x;
      case Function::kSoftsign:
        return x / (1.0f + fabsf(x));
      case Function::kSoftplus:
        return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
    }
    return x;
  }
  // Returns the derivative at argument x with result y.
  ESPALIER_HOST_DEVICE float Slope(float x, float y) const {
    if (x > clip || x < -clip) return 0.0f;
    switch (function) {
      case Function::kTanh:
        return 1.0f - y * y;
      case Function::kSigmoid:
        return y * (1.0f - y);
      case Function::kRelu:
        return x > 0.0f ? 1.0f : 0.0f;
      case Function::kAffine:
        return alpha;
      case Function::kLeakyRelu:
        return x > 0.0f ? 1.0f : alpha;
      case Function::kThresholdedRelu:
        return x > alpha ? 1.0f : 0.0f;
      case Function::kScaledTanh: {
        const float t = tanhf(beta * x);
        return alpha * beta * (1.0f - t * t);
      }
      case Function::kHardSigmoid:
        return y > 0.0f && y < 1.0f ? alpha : 0.0f;
      case Function::kElu:
        return x < 0.0f ? y + alpha : 1.0f;
      case Function::kSoftsign: {
        const float d = 1.0f + fabsf(x);
        return 1.0f / (d * d);
      }
      case Function::kSoftplus:
        return 1.0f / (1.0f + expf(-x));
    }
    return 0.0f;
  }
};

// The activations of one direction: f of the gates, g of the candidate (the only one of an RNN), h
// of the LSTM's cell.
template <typename F, typename G>
struct ActivationSet {
  F f;
  G g, h;
};
using AnyActivations = ActivationSet<AnyActivation, AnyActivation>;

// The attributes and sizes of the three operators. Sizes are those of the shard.
struct Problem {
  Cell cell = Cell::kRnn;
  int64_t steps = 0, rows = 0, in = 0, hidden = 0;
  int64_t directions = 1;
  int64_t first_direction = 0;  // in the unsharded operator
  bool only_reverse = false;
  bool linear_before_reset = false;
  std::vector<AnyActivations> activations;  // by direction of the shard
  bool defaults = true;                     // sigmoid for f, tanh for the others, no clipping

  int64_t gates() const { return Gates(cell) * hidden; }  // columns
  bool reversed(int64_t d) const { return only_reverse || first_direction + d == 1; }
  // Sizes come from x[S, N, I] and w[D, G*H, I].
  static Problem Make(Cell cell, const Attributes& attributes, const TensorSpec& x,
                      const TensorSpec& w);
};

// Splits "sigmoid,tanh" at the commas.
inline std::vector<std::string> SplitNames(const std::string& list) {
  std::vector<std::string> names(list.empty() ? 0 : 1);
  for (char c : list) {
    if (c == ',') {
      names.emplace_back();
    } else if (c != ' ') {
      names.back() += c;
    }
  }
  return names;
}

inline Problem Problem::Make(Cell cell, const Attributes& attributes, const TensorSpec& x,
                             const TensorSpec& w) {
  Problem p;
  p.cell = cell;
  p.steps = x.dims[0];
  p.rows = x.dims[1];
  p.in = x.dims[2];
  p.hidden = w.dims[1] / Gates(cell);
  p.directions = w.dims[0];
  p.first_direction = w.offset[0];
  p.only_reverse = attributes.String("direction") == "reverse";
  p.linear_before_reset = attributes.Bool("linear_before_reset");
  const int count = Activations(cell);
  const std::vector<std::string> names = SplitNames(attributes.String("activations"));
  const std::vector<double> alpha = attributes.Floats("alpha"), beta = attributes.Floats("beta");
  const float clip = static_cast<float>(attributes.Float("clip"));
  p.defaults = names.empty() && !(clip > 0);
  const int first = cell == Cell::kRnn ? 1 : 0;
  for (int64_t d = 0; d < p.directions; ++d) {
    AnyActivation all[3];
    for (int i = 0; i < count; ++i) {
      const size_t at = static_cast<size_t>((p.first_direction + d) * count + i);
      AnyActivation& one = all[first + i];
      one.function = first + i == 0 ? Function::kSigmoid : Function::kTanh;
      for (int f = 0; !names.empty() && f < kNumFunctions; ++f) {
        if (names[at] == kFunctions[f].name) one.function = static_cast<Function>(f);
      }
      const FunctionInfo& info = kFunctions[static_cast<int>(one.function)];
      one.alpha = alpha.empty() ? info.alpha : static_cast<float>(alpha[at]);
      one.beta = beta.empty() ? info.beta : static_cast<float>(beta[at]);
      if (clip > 0) one.clip = clip;
    }
    p.activations.push_back({all[0], all[1], all[2]});
  }
  return p;
}

}  // namespace espalier::recurrent
