// The LLM's continuations of prompts, by the engine that serves it or one made for the purpose.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "espalier/v1/distillation.pb.h"
#include "server/distillation/distillation_dependencies.h"

namespace espalier {

// `done` prompts have their continuation. An error ends the work.
using ContinuationListener = std::function<absl::Status(int64_t done)>;

// Fills in the continuations that `prompts` lacks. Where the LLM is served with the weights that
// are asked for, its engine makes them, behind all requests of users; otherwise it is loaded
// beside. `listener` is called whenever some have come and at least a few times a second.
absl::Status Continue(const DistillationDependencies& tools, const v1::DistillationSpec& spec,
                      v1::DistillationPrompts* prompts, const ContinuationListener& listener);

}  // namespace espalier
