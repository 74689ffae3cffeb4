// Published models as training graphs, so that plans can be compared on machines that need not be
// present: shapes, operators and parameters are those of the papers, fused as Espalier would run
// them. No graph is ever run at its full size.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ops/graph/graph.h"
#include "ops/schema/registry.h"

namespace espalier {

struct ZooModel {
  std::string name;
  std::string source;  // where it was published, and what was chosen where it leaves a choice
  int64_t published_parameters = 0;  // those that are trained
  double parameter_tolerance = 0;    // how far a faithful graph may be off, as a fraction
  int64_t batch_per_device = 0;      // a usual one
  // Not yet bound: dimension 0 of its inputs is -1. The registry must outlive the call only.
  std::function<absl::StatusOr<Graph>(const OpRegistry&)> build;
};

const std::vector<ZooModel>& Zoo();

// Null if there is none.
const ZooModel* FindZooModel(absl::string_view name);

}  // namespace espalier
