// Everything that can be found wrong with a DistillationSpec before anything is computed.
#pragma once

#include "absl/status/statusor.h"
#include "espalier/v1/distillation.pb.h"
#include "server/distillation/distillation_dependencies.h"

namespace espalier {

struct CheckedDistillation {
  v1::DistillationSpec spec;        // with its defaults
  v1::DistillationPrompts prompts;  // tokens of the LLM; the held-out ones apart
  std::vector<std::string> outputs;
};

// Errors name the field, and the artifact where one is wrong: NotFound if it is not there,
// InvalidArgument if its vocabulary is not the LLM's, token for token, if its context is too short
// for prompt and continuation, or if its name is one that the job would write.
absl::StatusOr<CheckedDistillation> CheckDistillationSpec(const DistillationDependencies& tools, const v1::DistillationSpec& spec);

}  // namespace espalier
