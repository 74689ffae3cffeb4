#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterIdentity(OpRegistry& registry) {
  OpDef def = MakeUnary(
      {.name = "identity", .doc = "y = x", .flops = 0, .saves = Saves::kNothing, .any_type = true});
  def.types = ElementTypes("FISB");
  def.view = true;
  registry.Add(std::move(def));
}

}  // namespace espalier
