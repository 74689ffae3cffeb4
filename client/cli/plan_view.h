// A plan in a few lines: what it predicts against the alternatives, and how much of what it splits.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/terminal/terminal.h"
#include "espalier/v1/plan.pb.h"

namespace espalier {

std::string RenderPlanSummary(const v1::Plan& plan, const Terminal& terminal);

// PermissionDenied names the file.
absl::Status WriteFile(const std::string& path, const std::string& text);

// JSON as `--import-strategy` reads it.
std::string PlanToJson(const v1::Plan& plan);

}  // namespace espalier
