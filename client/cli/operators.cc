#include "client/cli/operators.h"

#include "ops/operators/register_all.h"

namespace espalier {

const OpRegistry& Operators() {
  static const OpRegistry* operators = [] {
    auto* registry = new OpRegistry;
    RegisterAllOperators(*registry);
    return registry;
  }();
  return *operators;
}

}  // namespace espalier
