// GrantWishes on the threads that the calling one has for kernels.
#pragma once

#include "serving/engine/model_runner.h"

namespace espalier {

void GrantWishesOnThreads(const RunnerBatch& batch, RunnerLogits* logits);

}  // namespace espalier
