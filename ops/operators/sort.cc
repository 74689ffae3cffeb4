#include "ops/operators/select.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterSort(OpRegistry& registry) {
  OpDef def = MakeSort("sort",
                       "the elements in their order along axis, and the places where they were; "
                       "equal ones keep their order, NaN counts as the largest",
                       /*values=*/true);
  def.gradient = Gradient{.needs_outputs = {1}, .differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
