#include "ops/operators/select.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterArgTopK(OpRegistry& registry) {
  registry.Add(MakeTopK("arg_top_k", "the places that top_k gives, as i32", DType::kI32,
                        /*values=*/false));
}

}  // namespace espalier
