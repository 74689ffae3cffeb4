#include "ops/operators/select.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterTopK(OpRegistry& registry) {
  OpDef def =
      MakeTopK("top_k",
               "the k largest or smallest elements along axis, from the most extreme on, and "
               "their places; of equal ones the first comes first, NaN counts as the largest",
               DType::kI64, /*values=*/true);
  def.gradient = Gradient{.needs_outputs = {1}, .differentiable = {0}};
  registry.Add(std::move(def));
}

}  // namespace espalier
