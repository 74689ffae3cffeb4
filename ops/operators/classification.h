// Shared by the losses and metrics that compare scores with labels.
#pragma once

#include <string>

#include "ops/schema/op_def.h"

namespace espalier {

// logits[..., C], labels[...] (i32 or i64) -> f32 scalar, the mean over all labels. The leading
// dimensions are split into partial sums; each shard needs all classes. `count`, the number of
// labels in the whole tensor, is filled in.
OpDef MakeClassification(const std::string& name, const std::string& doc);

}  // namespace espalier
