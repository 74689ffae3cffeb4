// The table of operators. Register functions, called from ops/operators/register_all.h, fill it, so
// that tests can build smaller ones.
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
  // Adds `def`, and "<name>_grad" derived from its Gradient, if it has one. Adding a name twice is
  // a programmer error and aborts.
  void Add(OpDef def);

  // Null if the operator is unknown.
  const OpDef* Find(absl::string_view name) const;

  // Sorted by name, without the derived gradients.
  std::vector<const OpDef*> All() const;

 private:
  std::map<std::string, OpDef, std::less<>> ops_;
};

// Fills in default attributes, checks attributes and the number of inputs, then infers types. On
// success types->attributes is complete and canonicalized, and types->outputs is filled in.
absl::Status InferNode(const OpDef& def, NodeTypes* types);

// The operator's cost and split rule, or the defaults.
Cost ForwardCost(const OpDef& def, const NodeTypes& types);
SplitRule SplitOf(const OpDef& def, const NodeTypes& types);

// "linear_grad" -> "linear"; empty if `name` is not a gradient.
absl::string_view ForwardName(absl::string_view name);

}  // namespace espalier
