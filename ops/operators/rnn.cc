#include "ops/operators/recurrent.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterRnn(OpRegistry& registry) {
  registry.Add(MakeRecurrent(recurrent::Cell::kRnn, "rnn", "RNN",
                             "x[S, N, I], w[D, H, I], r[D, H, H], b[D, 2H]?, lengths[N]?, h0[D, N, "
                             "H]? -> y[S, D, N, H], h[D, N, H]: h = f(x w^T + h r^T + b)"));
}

}  // namespace espalier
