#include "ops/operators/reduce.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterReduceMean(OpRegistry& registry) {
  OpDef def = MakeReduction({.name = "reduce_mean",
                             .doc = "y = sum of x over axes / count",
                             .types = ElementTypes("F"),
                             .is_sum = true});
  def.attributes.push_back({.name = "count",
                            .kind = AttributeKind::kInt,
                            .doc = "elements per sum in the whole tensor; filled in"});
  def.canonicalize = [](const NodeTypes& types, Attributes* attributes) {
    attributes->Set("count", ReducedCount(types));
  };
  registry.Add(std::move(def));
}

}  // namespace espalier
