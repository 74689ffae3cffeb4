// What rows of a history are called, and their values as numbers and as JSON.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "espalier/v1/probe.pb.h"
#include "espalier/v1/replay.pb.h"

namespace espalier {

// "lm@3".
std::string RunOf(const v1::HistoryRow& row);

// As it is asked for: "loss", "norm(grad(dense/kernel))", "histogram(relu_1, 64)".
std::string LabelOf(const v1::HistoryRow& row);

// "forward" or "replay".
const char* SourceOf(const v1::HistoryRow& row);

// The shortest text that reads back to the same bits; "NaN", "Infinity", "-Infinity".
std::string ExactNumber(double value);

// The number that a row's value is: a scalar, or a tensor without dimensions.
std::optional<double> NumberOf(const v1::ProbeValue& value);

// The elements of a tensor, in row-major order; those of I64 beyond 2^53 are rounded.
std::vector<double> TensorDoubles(const v1::TensorValue& tensor);
// "f32", "i64".
std::string DTypeNameOf(const v1::TensorValue& tensor);

// A number of a row: itself, or one of several elements with a label of its own,
// "quantiles(relu_1, 0.5)", "top_k(relu_1, 4)[0]".
struct LabelledNumber {
  std::string label;
  double value = 0;
};
// The numbers of a row that can be followed over steps: NumberOf, or up to 16 elements. Empty for
// histograms, tensors and more elements.
std::vector<LabelledNumber> NumbersOf(const v1::HistoryRow& row);

// A number (JsonNumber), {"low", "high", "counts", "outside"}, {"indices", "values"}, or {"dtype",
// "dims", "values"}. null: the row has no value.
nlohmann::ordered_json ValueJson(const v1::ProbeValue& value);
// ExactNumber as a JSON number; what is none in JSON as text.
nlohmann::ordered_json JsonNumber(double value);

}  // namespace espalier
