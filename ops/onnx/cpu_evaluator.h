// Folds constants with the CPU kernels.
#pragma once

#include "ops/onnx/import.h"

namespace espalier {

Evaluator CpuEvaluator();

}  // namespace espalier
