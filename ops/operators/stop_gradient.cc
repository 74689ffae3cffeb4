#include "ops/operators/elementwise.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterStopGradient(OpRegistry& registry) {
  OpDef def = MakeUnary({.name = "stop_gradient",
                         .doc = "y = x, through which no gradient flows",
                         .flops = 0,
                         .any_type = true});
  def.types = ElementTypes("FISB");
  def.gradient = Gradient{.constants = {0}};
  def.view = true;
  registry.Add(std::move(def));
}

}  // namespace espalier
