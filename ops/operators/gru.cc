#include "ops/operators/recurrent.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterGru(OpRegistry& registry) {
  registry.Add(
      MakeRecurrent(recurrent::Cell::kGru, "gru", "GRU",
                    "x[S, N, I], w[D, 3H, I], r[D, 3H, H], b[D, 6H]?, lengths[N]?, h0[D, N, H]? -> "
                    "y[S, D, N, H], h[D, N, H]: gates z, r, h; h = (1 - z) * candidate + z * h"));
}

}  // namespace espalier
