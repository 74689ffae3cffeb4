#include "ops/operators/select.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterArgsort(OpRegistry& registry) {
  registry.Add(MakeSort("argsort", "the places that sort gives", /*values=*/false));
}

}  // namespace espalier
