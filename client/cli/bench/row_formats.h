// Output formats of benchmark rows, as `llama-bench -o`.
#pragma once

#include <string>
#include <vector>

#include "client/terminal/terminal.h"
#include "nlohmann/json_fwd.hpp"

namespace espalier {

// "table" is for people; the others match llama-bench.
inline constexpr const char* kRowFormats[] = {"table", "csv", "json", "jsonl", "md", "sql"};

// Formats `rows`: flat objects with the same fields, in column order, except "samples_...", which
// are lists and appear only in JSON. `terminal` is used by "table".
std::string FormatRows(const std::string& format, const std::vector<nlohmann::ordered_json>& rows,
                       const Terminal& terminal);

}  // namespace espalier
