// Makes an imported ONNX model trainable: adds losses and metrics to its outputs.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/graph.pb.h"
#include "ops/graph/graph.h"

namespace espalier {

constexpr char kLabelsInput[] = "labels";

// A loss or metric on an output of the model.
struct LossOrMetric {
  std::string op;
  std::string output = {};     // of the model; empty: see AddLossAndMetrics
  double weight = 1;           // of a loss in the sum that training minimizes
  Attributes attributes = {};  // of the operator; and from_logits, and `axis` of the classes
  // Of a loss with the input `weights`: one for each class, finite, 0 or more. Without an attribute
  // mean_over its mean is then one over the weights of the labels' classes, as in PyTorch.
  std::vector<float> class_weights = {};
};

struct Objective {
  std::vector<LossOrMetric> losses;  // at least one
  std::vector<LossOrMetric> metrics;
};

// Reads an objective, or the short form of one loss and metrics on one output. InvalidArgument
// names the field.
absl::StatusOr<Objective> ObjectiveFromProto(
    const v1::Objective& objective, const std::string& loss,
    const google::protobuf::RepeatedPtrField<std::string>& metrics);

// The labels that a dataset has.
struct LabelColumns {
  // Returns the type of one example of the column that would feed an input, or nothing if the
  // dataset is unknown or has no such column.
  std::function<std::optional<TensorType>(const std::string& input)> find = [](const std::string&) {
    return std::optional<TensorType>();
  };
  DType classes = DType::kI32;  // type of class labels where `find` finds none: kI32 or kI64
};

// Adds losses and metrics, and the inputs with their labels. The first loss without an output gets
// the model's first output, every other loss or metric without one that of the first loss.
//  - "loss" is the loss, or the weighted sum of several, which are then reported as "loss.OUTPUT".
//    A metric has its operator's name, followed by ".OUTPUT" if it names one.
//  - Labels are the input "labels", or "labels.OUTPUT" where the dataset has that. Class labels
//    have the shape of the output without the classes, which are the dimension that a softmax of
//    the model, `axis`, or the labels' shape says; a target has the output's type and shape.
//    Dimensions of size 1 may be missing or added. A loss with one input needs no labels.
//  - Predictions are matched to what the operators take (match_predictions.h).
// Returns what was done, in sentences for the user. InvalidArgument names the field, output or
// tensor and what is accepted. `batch` serves to infer shapes.
absl::StatusOr<std::vector<std::string>> AddLossAndMetrics(const OpRegistry& registry,
                                                           const Objective& objective,
                                                           const LabelColumns& labels,
                                                           int64_t batch, Graph* graph);

}  // namespace espalier
