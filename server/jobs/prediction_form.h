// Finds out from a graph's operators whether a tensor holds probabilities or their logarithms.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "ops/graph/graph.h"

namespace espalier {

// What is known of the values of a tensor. Nothing known: a tensor that may be logits.
struct PredictionForm {
  enum Function { kNone, kSoftmax, kSigmoid };

  // `logarithm`: the tensor holds the logarithms of numbers with the properties below.
  bool logarithm = false;
  // Bounds of all elements.
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  // The elements along dimension `axis` add up to `sum`; -1: unknown.
  int axis = -1;
  double sum = 0;
  // The numbers are `function` of `logits` (along `axis`), seen through `views`: operators, in
  // order, whose input 0 is the tensor and which only move or select elements, and not along
  // `axis`.
  Function function = kNone;
  ValueId logits = kNoValue;
  std::vector<NodeId> views;
  NodeId by = kNoNode;  // the softmax or sigmoid, or what stands for it

  // Probabilities of classes along `axis`.
  bool IsDistribution() const;
  // Numbers from 0 to 1.
  bool IsProbability() const;
};

// Follows softmax, log-softmax, sigmoid, and the same written with exp, log and sums, through
// identity, stop_gradient, cast, dimension changes, slices, gathers, concatenation, clipping,
// weighted means, and means, pools and interpolation over other dimensions. Of other operators it
// follows the bounds. REQUIRES: `bound` went through BindAndInfer.
PredictionForm FormOf(const Graph& bound, ValueId value);

}  // namespace espalier
