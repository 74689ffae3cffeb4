// SampleRows on the threads that the calling one has for kernels.
#pragma once

#include "serving/runner/model_runner.h"

namespace espalier {

void SampleRowsOnThreads(const RunnerBatch& batch, RunnerOutput* logits);

}  // namespace espalier
