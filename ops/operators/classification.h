// Losses and metrics that compare scores with labels.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/schema/op_def.h"

namespace espalier {

// logits[..., C], labels[...] (i32 or i64) -> f32 scalar, the mean over all labels. Splits the
// leading dimensions into partial sums; each shard needs all classes. Fills in `count`, the number
// of labels in the whole tensor.
OpDef MakeClassification(const std::string& name, const std::string& doc);

// Attributes of label losses: reduction "mean", "sum" or "none"; and mean_over "all" labels or
// "counted", the labels that are not ignored, weighted by class.

// count, ignore_index, reduction and mean_over.
std::vector<AttributeSpec> LabelLossAttributes(const std::string& mean_over);
// Labels (input 1) of so many classes, with ignore_index.
IndexRange LabelRange(const NodeTypes& types, int64_t classes);
absl::Status CheckLabelReduction(const std::string& op, const Attributes& attributes);
// A scalar, or one value per label.
TensorType LabelLossType(const NodeTypes& types);
// Splits along all dimensions of the labels (input 1) and leaves the entry of input 0 like it. Has
// no axes for a mean over counted labels, because a shard does not know their number.
SplitRule SplitLabels(const NodeTypes& types);

}  // namespace espalier
