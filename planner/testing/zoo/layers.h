// Layers with parameters, from which the models of the zoo are built.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/builder.h"

namespace espalier::zoo {

// A value and its number of channels or features, which the next layer's weights need. Types of
// computed values are unknown before the graph is bound.
struct Features {
  ValueId value = kNoValue;
  int64_t width = 0;
};

enum class Bias {
  kNone,
  kFused,
  // As an operator of its own: a linear layer that adds its bias cannot be split along its
  // reduction (each part would add it), as Megatron splits the second of two.
  kApart,
};

struct Window {
  std::vector<int64_t> kernel;
  int64_t stride = 1;
  std::vector<int64_t> pads = {};  // per dimension, on both sides; empty: none
};

struct BatchNormOptions {
  std::string activation = "relu";
  ValueId residual = kNoValue;
  double epsilon = 1e-5;
};

class Layers {
 public:
  Layers(const OpRegistry& registry, const std::string& model) : b_(registry, model) {}

  GraphBuilder& builder() { return b_; }

  ValueId Weight(const std::string& name, Dims dims);

  Features Linear(const std::string& name, Features x, int64_t out, Bias bias = Bias::kFused,
                  const std::string& activation = "none");

  // In 2 or 3 dimensions, as the window has.
  Features Conv(const std::string& name, Features x, int64_t out, const Window& window,
                Bias bias = Bias::kNone, const std::string& activation = "none");
  // Doubles every spatial dimension.
  Features UpConv3d(const std::string& name, Features x, int64_t out);

  Features BatchNorm(const std::string& name, Features x, const BatchNormOptions& options = {});

  Features GroupNorm(const std::string& name, Features x, int64_t groups);

  Features Pool2d(const std::string& name, Features x, const std::string& kind,
                  const Window& window);
  // The mean over the two dimensions of an image.
  Features GlobalAverage(const std::string& name, Features x);
  // Along dimension 1.
  Features Concat(const std::string& name, const std::vector<Features>& parts);

  Features LayerNorm(const std::string& name, Features x);
  // The normalized sum of `x` and `residual`, and the sum.
  struct Normed {
    Features normed;
    Features sum;
  };
  Normed ResidualLayerNorm(const std::string& name, Features x, Features residual);

  // Cross-entropy with the graph's input "labels" of these dimensions; the last dimension of
  // `logits` holds the classes. Completes the graph.
  absl::StatusOr<Graph> Classify(Features logits, Dims labels = {-1});

 private:
  ValueId Scale(const std::string& name, int64_t width, Initializer::Kind kind,
                bool trainable = true);

  GraphBuilder b_;
};

}  // namespace espalier::zoo
