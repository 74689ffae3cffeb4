// Gives the losses and metrics of a training graph the input `example_weights`, with which they are
// means over the labels that are not ignored, or over the weights of these labels' classes (as in
// PyTorch), and leave padding of the last batch of held-out examples out.
#pragma once

#include <map>
#include <string>

#include "ops/graph/graph.h"

namespace espalier {

struct WeightedHeads {
  // Whether every reported output is weighted, so that padding does not change it.
  bool all = true;
  std::string unweighted;  // otherwise the name of the first one that is not
};

// `graph` is bound to batches of `batch` examples. Adds one input of shape [batch] for each kind of
// weights, and its derived column (storage/example_weights.h) to `columns`, which maps graph inputs
// to dataset columns. Changes each loss or metric that is a mean over labels, elements or rows of
// the batch and has no weights. Labels are counted where they are an input of the graph; computed
// ones all count, unless the node says mean_over = "counted", which leaves it as it is. So do
// weights of classes that are computed, or negative.
WeightedHeads AddExampleWeights(const OpRegistry& registry, int64_t batch, Graph* graph,
                                std::map<std::string, std::string>* columns);

}  // namespace espalier
