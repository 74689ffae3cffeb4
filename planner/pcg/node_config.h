// The configuration of one operator: parts per axis and the device of each part.
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
  // Every device runs all of it, and has all of each operand and result; all degrees are 1. Only in
  // forward passes.
  bool replicated = false;

  bool operator==(const NodeConfig&) const = default;
};

// How a node may be split: its rule with one entry for every operand and dimension. Internal,
// naming the operator, if the rule contradicts the types.
absl::StatusOr<SplitRule> CompleteSplitRule(const OpDef& def, const NodeTypes& types);

// The degrees that `axis` may have on at most `most` devices, ascending.
std::vector<int> LegalDegrees(const Axis& axis, int most);

// InvalidArgument says which degree or device is wrong and which would be legal.
absl::Status CheckConfig(const SplitRule& rule, const NodeConfig& config, int num_devices);

// Types of one part: the first one, where they differ (Halo).
NodeTypes LocalTypes(const NodeTypes& whole, const SplitRule& rule,
                     const std::vector<int>& degrees);

NodeConfig OnDevice(const SplitRule& rule, int device);

// The first sample axis over as many of `num_devices` devices as divide it; the first device if
// there is no such axis.
NodeConfig DataParallel(const SplitRule& rule, int num_devices);

}  // namespace espalier
