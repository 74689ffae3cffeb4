// Evaluates single operators with the CPU kernels: folds constants, unless `training`.
#pragma once

#include "ops/onnx/import.h"

namespace espalier {

// `training`: as in a training step, which matters to batch norm.
Evaluator CpuEvaluator(bool training = false);

}  // namespace espalier
