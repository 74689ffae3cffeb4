// How the programs here talk to their tests: a line of JSON in, a line of JSON out.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

namespace espalier::conformance {

using nlohmann::json;

// Answers every line of standard input with one line, until its end. What `answer` throws becomes
// {"error": "..."}.
void Serve(const std::function<json(const json& request)>& answer);

}  // namespace espalier::conformance
