// Activations of RNN, GRU and LSTM, in ONNX's and in Espalier's notation.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier::onnx_import {

// Attributes of Espalier's operators: names joined by ',', and alpha and beta for every activation
// or for none.
struct RecurrentActivations {
  std::string names;
  std::vector<double> alpha, beta;
};

// Reads attributes 'activations', 'activation_alpha' and 'activation_beta'. Names are
// case-insensitive. ONNX lists alpha and beta only for activations that have them. Returns
// InvalidArgument that says what is wrong and what would be accepted.
absl::StatusOr<RecurrentActivations> ReadActivations(const std::vector<std::string>& names,
                                                     const std::vector<double>& alpha,
                                                     const std::vector<double>& beta);

struct OnnxActivations {
  std::vector<std::string> names;
  std::vector<double> alpha, beta;
};
// The inverse of ReadActivations. Unknown names are kept.
OnnxActivations WriteActivations(const RecurrentActivations& activations);

}  // namespace espalier::onnx_import
