#include "storage/example_weights.h"

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace espalier {
namespace {

constexpr absl::string_view kPrefix = "espalier.example_weights:";
// With class weights, as base64, before the rest.
constexpr absl::string_view kClassPrefix = "espalier.class_weights:";

std::string Encode(const std::vector<float>& weights) {
  return absl::Base64Escape(absl::string_view(reinterpret_cast<const char*>(weights.data()),
                                              weights.size() * sizeof(float)));
}

std::optional<std::vector<float>> Decode(absl::string_view text) {
  std::string bytes;
  if (!absl::Base64Unescape(text, &bytes) || bytes.size() % sizeof(float) != 0) return std::nullopt;
  std::vector<float> weights(bytes.size() / sizeof(float));
  std::memcpy(weights.data(), bytes.data(), bytes.size());
  return weights;
}

}  // namespace

std::string ExampleWeightsColumn::Name() const {
  if (class_weights.empty()) return absl::StrCat(kPrefix, ignore_index, ":", labels);
  return absl::StrCat(kClassPrefix, Encode(class_weights), ":", ignore_index, ":", labels);
}

std::optional<ExampleWeightsColumn> ExampleWeightsColumn::Parse(const std::string& name) {
  absl::string_view rest = name;
  ExampleWeightsColumn column;
  if (absl::StartsWith(rest, kClassPrefix)) {
    rest.remove_prefix(kClassPrefix.size());
    const size_t end = rest.find(':');
    if (end == absl::string_view::npos) return std::nullopt;
    std::optional<std::vector<float>> weights = Decode(rest.substr(0, end));
    if (!weights.has_value()) return std::nullopt;
    column.class_weights = *std::move(weights);
    rest.remove_prefix(end + 1);
  } else if (absl::StartsWith(rest, kPrefix)) {
    rest.remove_prefix(kPrefix.size());
  } else {
    return std::nullopt;
  }
  const size_t colon = rest.find(':');
  if (colon == absl::string_view::npos ||
      !absl::SimpleAtoi(rest.substr(0, colon), &column.ignore_index)) {
    return std::nullopt;
  }
  column.labels = std::string(rest.substr(colon + 1));
  return column;
}

}  // namespace espalier
