#include "ops/operators/register_all.h"

namespace espalier {

#define ESPALIER_OPERATOR(Name) void Register##Name(OpRegistry&);
#include "ops/operators/operators.inc"
#undef ESPALIER_OPERATOR

void RegisterAllOperators(OpRegistry& registry) {
#define ESPALIER_OPERATOR(Name) Register##Name(registry);
#include "ops/operators/operators.inc"
#undef ESPALIER_OPERATOR
}

}  // namespace espalier
