// Returns a short summary of a plan: its prediction against the alternatives, and the splits of its
// operators.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/terminal/terminal.h"
#include "espalier/v1/plan.pb.h"

namespace espalier {

std::string RenderPlanSummary(const v1::Plan& plan, const Terminal& terminal);

// In short, what is split: "data parallel over 2 workers, ZeRO stage 1".
std::string PlanInWords(const v1::Plan& plan);

// Returns PermissionDenied, naming the file, if it cannot be written.
absl::Status WriteFile(const std::string& path, const std::string& text);

// Returns the JSON that `--import-strategy` reads.
std::string PlanToJson(const v1::Plan& plan);

}  // namespace espalier
