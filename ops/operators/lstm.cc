#include "ops/operators/recurrent.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterLstm(OpRegistry& registry) {
  registry.Add(
      MakeRecurrent(recurrent::Cell::kLstm, "lstm", "LSTM",
                    "x[S, N, I], w[D, 4H, I], r[D, 4H, H], b[D, 8H]?, lengths[N]?, h0[D, N, H]?, "
                    "c0[D, N, H]?, p[D, 3H]? -> y[S, D, N, H], h[D, N, H], c[D, N, H]: gates i, o, "
                    "f, c; c = f * c + i * g; h = o * tanh(c); p are peepholes of i, o, f"));
}

}  // namespace espalier
