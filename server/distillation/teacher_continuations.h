// Generates the LLM's continuations of prompts, the teacher output of distillation.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "espalier/v1/distillation.pb.h"
#include "server/distillation/distillation_dependencies.h"

namespace espalier {

// Called with the number of prompts that have a continuation. If it returns an error, the work
// ends.
using ContinuationListener = std::function<absl::Status(int64_t done)>;

// Fills in the missing continuations of `prompts`. If the LLM is served with the requested weights,
// its engine generates them at the lowest priority; otherwise the LLM is loaded separately. Calls
// `listener` when continuations arrive, and at least a few times a second.
absl::Status Continue(const DistillationDependencies& tools, const v1::DistillationSpec& spec,
                      v1::DistillationPrompts* prompts, const ContinuationListener& listener);

}  // namespace espalier
