// Graphs that a replay evaluates: --log-graph.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "espalier/v1/replay.pb.h"

namespace espalier {

// Adds the graphs of values such as "cosine.onnx" and "cosine=graphs/1.pb". Usage errors name the
// file.
absl::Status AddGraphQuestions(const std::vector<std::string>& values, v1::ReplaySpec* spec);

// The coordinator's error, with the file of the graph that it names.
absl::Status NameGraphFile(const absl::Status& status, const std::vector<std::string>& values);

}  // namespace espalier
