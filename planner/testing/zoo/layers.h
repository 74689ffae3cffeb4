// Layers with their parameters, as the models of the zoo are written in them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/builder.h"

namespace espalier::zoo {

// A value and how many channels or features it has: the size that the next layer's weights need.
// The types of computed values are not known before the graph is bound.
struct Features {
  ValueId value = kNoValue;
  int64_t width = 0;
};

enum class Bias {
  kNone,
  kFused,
  // Added by an operator of its own: a linear layer that adds its bias cannot be split along its
  // input (each part would add it), which is how Megatron splits the second of two.
  kApart,
};

struct Window {
  std::vector<int64_t> kernel;
  int64_t stride = 1;
  std::vector<int64_t> pads = {};  // of each dimension, on both sides; empty: none
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

  // In as many dimensions, 2 or 3, as the window has.
  Features Conv(const std::string& name, Features x, int64_t out, const Window& window,
                Bias bias = Bias::kNone, const std::string& activation = "none");
  // Doubles every dimension of a volume.
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
  // The normalised sum of `x` and `residual`, and the sum.
  struct Normed {
    Features normed;
    Features sum;
  };
  Normed ResidualLayerNorm(const std::string& name, Features x, Features residual);

  // Cross-entropy with the graph's input "labels" of these dimensions; classes are the last one of
  // `logits`. Ends the graph.
  absl::StatusOr<Graph> Classify(Features logits, Dims labels = {-1});

 private:
  ValueId Scale(const std::string& name, int64_t width, Initializer::Kind kind,
                bool trainable = true);

  GraphBuilder b_;
};

}  // namespace espalier::zoo
