// Shared by the losses and metrics that compare scores with labels.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/schema/op_def.h"

namespace espalier {

// logits[..., C], labels[...] (i32 or i64) -> f32 scalar, the mean over all labels. The leading
// dimensions are split into partial sums; each shard needs all classes. `count`, the number of
// labels in the whole tensor, is filled in.
OpDef MakeClassification(const std::string& name, const std::string& doc);

// What losses of labels have beyond that, all by attributes: reduction "mean", "sum" or "none"; and
// mean_over "all" labels or "counted", those that are not ignored, by their class weights.

// count, ignore_index, reduction and mean_over.
std::vector<AttributeSpec> LabelLossAttributes(const std::string& mean_over);
absl::Status CheckLabelReduction(const std::string& op, const Attributes& attributes);
// A scalar, or one value per label.
TensorType LabelLossType(const NodeTypes& types);
// Along all dimensions of the labels, which are input 1; the entry of input 0 is left like it.
// Without axes for a mean over counted labels: how many there are is not known to a shard.
SplitRule SplitLabels(const NodeTypes& types);

}  // namespace espalier
