// The parallel configuration of one operator (FlexFlow's ParallelConfig): its degree along each
// axis and the device of each part.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "ops/schema/op_def.h"

namespace espalier {

struct NodeConfig {
  std::vector<int> degrees;  // one per axis of the operator
  std::vector<int> devices;  // one per part, the first axis outermost, all different
  // Every device runs the whole operator and holds all of each operand and result; all degrees are
  // 1. Forward passes only.
  bool replicated = false;

  bool operator==(const NodeConfig&) const = default;
};

// Returns the operator's split rule with one entry for every operand and dimension. Returns
// Internal, with the operator's name, if the rule contradicts the types.
absl::StatusOr<SplitRule> CompleteSplitRule(const OpDef& def, const NodeTypes& types);

// Returns the legal degrees of `axis` on at most `most` devices, ascending.
std::vector<int> LegalDegrees(const Axis& axis, int most);

// Returns InvalidArgument, with the illegal degree or device and the legal ones.
absl::Status CheckConfig(const SplitRule& rule, const NodeConfig& config, int num_devices);

// Returns the types of one part; of the first one where parts differ (Halo).
NodeTypes LocalTypes(const NodeTypes& whole, const SplitRule& rule,
                     const std::vector<int>& degrees);

NodeConfig OnDevice(const SplitRule& rule, int device);

// Splits the first sample axis over the most devices of `num_devices` that divide it. Without a
// sample axis the operator runs on device 0.
NodeConfig DataParallel(const SplitRule& rule, int num_devices);

}  // namespace espalier
