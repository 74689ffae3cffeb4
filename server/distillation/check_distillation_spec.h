// Validates a DistillationSpec before anything is computed.
#pragma once

#include "absl/status/statusor.h"
#include "espalier/v1/distillation.pb.h"
#include "server/distillation/distillation_dependencies.h"

namespace espalier {

inline constexpr int kMaxSsms = 16;  // of one distillation

// Returns the artifact that SSM `k` of a distillation becomes: "<name>-<k + 1>".
std::string DistilledArtifact(const std::string& name, int k);

struct CheckedDistillation {
  v1::DistillationSpec spec;        // with defaults filled in
  v1::DistillationPrompts prompts;  // tokens of the LLM; held-out prompts separate
  std::vector<std::string> outputs;
};

// Errors name the field and the artifact: NotFound if it does not exist; InvalidArgument if its
// vocabulary differs from the LLM's, if its context is too short for prompt and continuation, or if
// the job would overwrite it.
absl::StatusOr<CheckedDistillation> CheckDistillationSpec(const DistillationDependencies& tools,
                                                          const v1::DistillationSpec& spec);

}  // namespace espalier
