#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "ops/operators/elementwise.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterClip(OpRegistry& registry) {
  OpDef def =
      MakeUnary({.name = "clip",
                 .doc = "y = min(max(x, min), max), NaN for NaN; gradient where min <= x <= max",
                 .flops = 2,
                 .saves = Saves::kInput,
                 .types = ElementTypes("FIS"),
                 .attributes = {{.name = "min",
                                 .kind = AttributeKind::kFloat,
                                 .default_value = std::nullopt,
                                 .doc = "lower bound; absent: none"},
                                {.name = "max",
                                 .kind = AttributeKind::kFloat,
                                 .default_value = std::nullopt,
                                 .doc = "upper bound, wins over the lower one; absent: none"}}});
  def.infer = [same_type =
                   def.infer](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    for (const char* bound : {"min", "max"}) {
      if (std::isnan(types.attributes.Float(bound))) {
        return AttributeError("clip", bound, "NaN", "a number");
      }
    }
    return same_type(types);
  };
  registry.Add(std::move(def));
}

}  // namespace espalier
