// A plan in a few lines: what it predicts against the alternatives, and how much of what it splits.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/terminal/terminal.h"
#include "proto/plan.pb.h"

namespace espalier {

std::string RenderPlanSummary(const proto::Plan& plan, const Terminal& terminal);

// PermissionDenied names the file.
absl::Status WriteFile(const std::string& path, const std::string& text);

// JSON as `--import-strategy` reads it.
std::string PlanToJson(const proto::Plan& plan);

}  // namespace espalier
