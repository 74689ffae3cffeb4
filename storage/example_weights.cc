#include "storage/example_weights.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace espalier {
namespace {

constexpr absl::string_view kPrefix = "espalier.example_weights:";

}  // namespace

std::string ExampleWeightsColumn::Name() const {
  return absl::StrCat(kPrefix, ignore_index, ":", labels);
}

std::optional<ExampleWeightsColumn> ExampleWeightsColumn::Parse(const std::string& name) {
  absl::string_view rest = name;
  if (!absl::StartsWith(rest, kPrefix)) return std::nullopt;
  rest.remove_prefix(kPrefix.size());
  const size_t colon = rest.find(':');
  ExampleWeightsColumn column;
  if (colon == absl::string_view::npos ||
      !absl::SimpleAtoi(rest.substr(0, colon), &column.ignore_index)) {
    return std::nullopt;
  }
  column.labels = std::string(rest.substr(colon + 1));
  return column;
}

}  // namespace espalier
