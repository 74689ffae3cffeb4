// The activations of RNN, GRU and LSTM, as ONNX and as our operators spell them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier::onnx_import {

// As the attributes of our operators: names joined by ',', and alpha and beta of each activation,
// or none of them.
struct RecurrentActivations {
  std::string names;
  std::vector<double> alpha, beta;
};

// From attributes 'activations', 'activation_alpha' and 'activation_beta'. Names may be written in
// any case. ONNX lists alpha and beta of those activations only that have one. InvalidArgument
// names what is wrong and what would be accepted.
absl::StatusOr<RecurrentActivations> ReadActivations(const std::vector<std::string>& names,
                                                     const std::vector<double>& alpha,
                                                     const std::vector<double>& beta);

struct OnnxActivations {
  std::vector<std::string> names;
  std::vector<double> alpha, beta;
};
// The other way round; names that are not known stay as they are.
OnnxActivations WriteActivations(const RecurrentActivations& activations);

}  // namespace espalier::onnx_import
