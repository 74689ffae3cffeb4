// Values of chat fields, shared by gRPC and HTTP.
#pragma once

#include <algorithm>
#include <array>

#include "absl/strings/string_view.h"

namespace espalier {

inline constexpr absl::string_view kChatRoles = "system, developer, user, assistant or tool";

inline bool IsChatRole(absl::string_view role) {
  constexpr std::array<absl::string_view, 5> kKnown = {"system", "developer", "user", "assistant",
                                                       "tool"};
  return std::find(kKnown.begin(), kKnown.end(), role) != kKnown.end();
}

inline constexpr absl::string_view kReasoningEfforts =
    "none, minimal, low, medium, high, xhigh or max";

inline bool IsReasoningEffort(absl::string_view effort) {
  constexpr std::array<absl::string_view, 7> kKnown = {"none", "minimal", "low", "medium",
                                                       "high", "xhigh",   "max"};
  return std::find(kKnown.begin(), kKnown.end(), effort) != kKnown.end();
}

}  // namespace espalier
