// Weights of the examples of a batch, derived from a dataset's labels: the input `example_weights`
// of losses and metrics, with which a mean over all labels of the batch becomes a mean over those
// that count, or over their classes' weights. A plan may cut the batch in any way, because each
// worker holds the dataset and so knows the labels of the whole batch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace espalier {

// Names a column that the workers' BatchLoader computes (worker/data/batch_loader.h).
struct ExampleWeightsColumn {
  std::string labels;        // column of class labels; empty: all labels of an example count
  int64_t ignore_index = 0;  // labels of this value do not count
  // How much a label of each class counts: finite, 0 or more. Empty: each counts once.
  std::vector<float> class_weights;

  // The column's name in a LoadBatch instruction.
  std::string Name() const;
  // Returns nullopt if `name` is the name of an ordinary column.
  static std::optional<ExampleWeightsColumn> Parse(const std::string& name);
};

}  // namespace espalier
