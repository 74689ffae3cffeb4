#include "client/cli/history/row_values.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "ops/probe/expression.h"
#include "ops/tensor/half_conversion.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostElements = 16;

// Elements of `Stored` as doubles.
template <typename Stored, typename Convert>
std::vector<double> Elements(const std::string& data, const Convert& convert) {
  std::vector<double> out(data.size() / sizeof(Stored));
  for (size_t i = 0; i < out.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, data.data() + i * sizeof(Stored), sizeof(Stored));
    out[i] = static_cast<double>(convert(stored));
  }
  return out;
}

// The reduction's name and its arguments: "histogram" and "64, -1, 1".
struct Call {
  absl::string_view name, arguments;
};
Call Split(absl::string_view reduction) {
  const size_t open = reduction.find('(');
  if (open == absl::string_view::npos || reduction.back() != ')') return {reduction, ""};
  return {reduction.substr(0, open), reduction.substr(open + 1, reduction.size() - open - 2)};
}

}  // namespace

std::string RunOf(const v1::HistoryRow& row) {
  return absl::StrCat(row.experiment(), "@", row.version());
}

std::string LabelOf(const v1::HistoryRow& row) {
  if (row.reduction().empty() || row.reduction() == "full") return row.name();
  const Call call = Split(row.reduction());
  return absl::StrCat(call.name, "(", row.name(), call.arguments.empty() ? "" : ", ",
                      call.arguments, ")");
}

const char* SourceOf(const v1::HistoryRow& row) {
  return row.source() == v1::HistoryRow::REPLAY ? "replay" : "forward";
}

std::string ExactNumber(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char digits[40];
  const auto end = std::to_chars(digits, digits + sizeof digits, value);
  return std::string(digits, end.ptr);
}

std::optional<double> NumberOf(const v1::ProbeValue& value) {
  if (value.has_scalar()) return value.scalar();
  if (!value.has_tensor() || !value.tensor().dims().empty()) return std::nullopt;
  const std::vector<double> elements = TensorDoubles(value.tensor());
  if (elements.size() != 1) return std::nullopt;
  return elements[0];
}

std::vector<double> TensorDoubles(const v1::TensorValue& tensor) {
  const auto same = [](auto stored) { return stored; };
  const std::string& data = tensor.data();
  switch (tensor.dtype()) {
    case v1::F32:
      return Elements<float>(data, same);
    case v1::BF16:
      return Elements<uint16_t>(data, BF16ToF32);
    case v1::F16:
      return Elements<uint16_t>(data, F16ToF32);
    case v1::I32:
      return Elements<int32_t>(data, same);
    case v1::I64:
      return Elements<int64_t>(data, same);
    case v1::BOOL:
    case v1::U8:
      return Elements<uint8_t>(data, same);
    case v1::I8:
      return Elements<int8_t>(data, same);
    default:
      return {};
  }
}

std::string DTypeNameOf(const v1::TensorValue& tensor) {
  return absl::AsciiStrToLower(v1::DataType_Name(tensor.dtype()));
}

std::vector<LabelledNumber> NumbersOf(const v1::HistoryRow& row) {
  if (const auto number = NumberOf(row.value())) return {{LabelOf(row), *number}};
  if (row.value().elements().values_size() > kMostElements) return {};
  const auto& values = row.value().elements().values();
  std::vector<LabelledNumber> out;
  const auto reduction = ParseReduction(row.reduction());
  const bool quantiles = reduction.ok() && reduction->kind == Reduction::kQuantiles &&
                         reduction->quantiles.size() == static_cast<size_t>(values.size());
  for (int i = 0; i < values.size(); ++i) {
    out.push_back({quantiles ? absl::StrCat("quantiles(", row.name(), ", ",
                                            ExactNumber(reduction->quantiles[i]), ")")
                             : absl::StrCat(LabelOf(row), "[", i, "]"),
                   values[i]});
  }
  return out;
}

Json JsonNumber(double value) {
  return std::isfinite(value) ? Json(value) : Json(ExactNumber(value));
}

Json ValueJson(const v1::ProbeValue& value) {
  const auto numbers = [](const auto& from) {
    Json array = Json::array();
    for (const double number : from) array.push_back(JsonNumber(number));
    return array;
  };
  if (const auto number = NumberOf(value)) return JsonNumber(*number);
  Json json;
  switch (value.kind_case()) {
    case v1::ProbeValue::kHistogram:
      json["low"] = JsonNumber(value.histogram().low());
      json["high"] = JsonNumber(value.histogram().high());
      json["counts"] = value.histogram().counts();
      json["outside"] = value.histogram().outside();
      return json;
    case v1::ProbeValue::kElements:
      json["indices"] = value.elements().indices();
      json["values"] = numbers(value.elements().values());
      return json;
    case v1::ProbeValue::kTensor:
      json["dtype"] = DTypeNameOf(value.tensor());
      json["dims"] = value.tensor().dims();
      if (value.tensor().dtype() == v1::I64) {  // exact beyond 2^53, too
        Json& array = json["values"] = Json::array();
        const std::string& data = value.tensor().data();
        for (size_t at = 0; at + sizeof(int64_t) <= data.size(); at += sizeof(int64_t)) {
          int64_t element;
          std::memcpy(&element, data.data() + at, sizeof element);
          array.push_back(element);
        }
      } else {
        json["values"] = numbers(TensorDoubles(value.tensor()));
      }
      return json;
    default:
      break;
  }
  return nullptr;
}

}  // namespace espalier
