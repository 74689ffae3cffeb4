// The request loop of the runner programs: reads a line of JSON, writes a line of JSON.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

namespace espalier::conformance {

using nlohmann::json;

// Answers every line of standard input with one line, until its end. An exception of `answer`
// becomes {"error": "..."}.
void Serve(const std::function<json(const json& request)>& answer);

}  // namespace espalier::conformance
