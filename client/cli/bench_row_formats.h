// Rows of a benchmark in the forms that `llama-bench -o` knows.
#pragma once

#include <string>
#include <vector>

#include "client/terminal/terminal.h"
#include "nlohmann/json_fwd.hpp"

namespace espalier {

// "table" is for people; the rest as llama-bench has them.
inline constexpr const char* kRowFormats[] = {"table", "csv", "json", "jsonl", "md", "sql"};

// `rows` are flat objects of the same fields, in the order of columns, but for "samples_...", which
// are lists and only in JSON. `terminal` counts for "table".
std::string FormatRows(const std::string& format, const std::vector<nlohmann::ordered_json>& rows,
                       const Terminal& terminal);

}  // namespace espalier
