// Published models as training graphs, to compare plans on machines that need not exist. Shapes,
// operators and parameters are those of the papers, with Espalier's fused operators. No graph runs
// at its full size.
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
  std::string source;                // publication, and the choices it leaves open
  int64_t published_parameters = 0;  // trainable ones
  double parameter_tolerance = 0;    // allowed relative deviation from it
  int64_t batch_per_device = 0;      // a typical one
  // Not bound: dimension 0 of its inputs is -1. The registry must outlive the call only.
  std::function<absl::StatusOr<Graph>(const OpRegistry&)> build;
};

const std::vector<ZooModel>& Zoo();

// Null if there is none.
const ZooModel* FindZooModel(absl::string_view name);

}  // namespace espalier
