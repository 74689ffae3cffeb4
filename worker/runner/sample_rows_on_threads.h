// SampleRows, parallel over the calling thread's kernel threads.
#pragma once

#include "serving/runner/model_runner.h"

namespace espalier {

void SampleRowsOnThreads(const RunnerBatch& batch, RunnerOutput* logits);

}  // namespace espalier
