// Definition of rnn, gru and lstm: ONNX's operators, with all activations in one attribute.
#pragma once

#include <string>

#include "ops/kernel/recurrent.h"
#include "ops/schema/op_def.h"

namespace espalier {

// x[S, N, I], w[D, G*H, I], r[D, G*H, H], b[D, 2*G*H]?, lengths[N]?, h0[D, N, H]? (lstm: c0?, p[D,
// 3*H]?) -> y[S, D, N, H], h[D, N, H] (lstm: c). Samples and directions can be split.
OpDef MakeRecurrent(recurrent::Cell cell, const std::string& name, const std::string& onnx,
                    const std::string& doc);

}  // namespace espalier
