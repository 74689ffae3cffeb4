// Test helper: parses server-sent events.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"

namespace espalier {

// Returns the data of each event, whose name must equal its type.
inline std::vector<nlohmann::ordered_json> ParseSse(const std::vector<std::string>& events) {
  std::vector<nlohmann::ordered_json> out;
  for (const std::string& event : events) {
    const std::vector<std::string> lines = absl::StrSplit(event, '\n');
    EXPECT_EQ(lines.size(), 4) << event;
    out.push_back(nlohmann::ordered_json::parse(absl::StripPrefix(lines[1], "data: ")));
    EXPECT_EQ(lines[0], "event: " + out.back()["type"].get<std::string>());
  }
  return out;
}

}  // namespace espalier
