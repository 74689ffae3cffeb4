// The table of operators. Built by plain Register functions called from one place
// (ops/operators/register_all.h), so tests can build smaller ones.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ops/schema/op_def.h"

namespace espalier {

class OpRegistry {
 public:
  // Adds `def`, and "<name>_grad" derived from its Gradient. Adding a name twice is a programmer
  // error and aborts.
  void Add(OpDef def);

  // Null if there is no such operator.
  const OpDef* Find(absl::string_view name) const;

  // Sorted by name, without the derived gradients.
  std::vector<const OpDef*> All() const;

 private:
  std::map<std::string, OpDef, std::less<>> ops_;
};

// Fills in defaults and checks kinds and names of attributes and the number of inputs, then infers.
// On success types->attributes is complete (canonicalised as well) and types->outputs is filled in.
absl::Status InferNode(const OpDef& def, NodeTypes* types);

// Default-aware accessors.
Cost ForwardCost(const OpDef& def, const NodeTypes& types);
SplitRule SplitOf(const OpDef& def, const NodeTypes& types);

// "linear_grad" -> "linear"; empty if `name` is not a gradient.
absl::string_view ForwardName(absl::string_view name);

}  // namespace espalier
