#include "base/json/json_reader.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/json/bounded_json.h"

namespace espalier {
namespace {

using Json = nlohmann::json;

const Json kNull;

// The largest vocabularies with their merges have about two million values.
constexpr size_t kMaxValues = size_t{1} << 23;

std::string Excerpt(const Json& value) {
  return value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 60);
}

}  // namespace

absl::StatusOr<Json> ParseJson(absl::string_view text, absl::string_view file) {
  absl::StatusOr<Json> value = ParseBoundedJson<Json>(text, {.depth = 64, .values = kMaxValues});
  if (!value.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", value.status().message()));
  }
  return value;
}

void JsonReader::Fail(absl::StatusCode code, absl::string_view what) const {
  if (status_->ok()) *status_ = absl::Status(code, absl::StrCat(place_, ": ", what));
}

bool JsonReader::Has(absl::string_view key) const {
  if (!value_->is_object()) return false;
  const auto field = value_->find(std::string(key));
  return field != value_->end() && !field->is_null();
}

JsonReader JsonReader::Get(absl::string_view key) const {
  std::string place = absl::StrCat(place_, place_.empty() || place_.back() == ' ' ? "" : ".", key);
  if (!ok()) return JsonReader(kNull, std::move(place), status_);
  if (!Has(key)) {
    Invalid(value_->is_object() ? absl::StrCat("field \"", key, "\" is missing")
                                : absl::StrCat("is ", Excerpt(*value_), ", expected an object"));
    return JsonReader(kNull, std::move(place), status_);
  }
  return JsonReader(*value_->find(std::string(key)), std::move(place), status_);
}

std::string JsonReader::String(absl::string_view key, std::optional<std::string> fallback) const {
  if (fallback.has_value() && !Has(key)) return *fallback;
  return Get(key).AsString();
}

bool JsonReader::Bool(absl::string_view key, std::optional<bool> fallback) const {
  if (fallback.has_value() && !Has(key)) return *fallback;
  const JsonReader field = Get(key);
  if (!ok()) return false;
  if (!field.value().is_boolean()) {
    field.Invalid(absl::StrCat("is ", Excerpt(field.value()), ", expected true or false"));
    return false;
  }
  return field.value().get<bool>();
}

int64_t JsonReader::Int(absl::string_view key, int64_t low, int64_t high,
                        std::optional<int64_t> fallback) const {
  if (fallback.has_value() && !Has(key)) return *fallback;
  return Get(key).AsInt(low, high);
}

double JsonReader::Number(absl::string_view key, std::optional<double> fallback) const {
  if (fallback.has_value() && !Has(key)) return *fallback;
  return Get(key).AsNumber();
}

std::string JsonReader::AsString() const {
  if (!ok()) return "";
  if (!value_->is_string()) {
    Invalid(absl::StrCat("is ", Excerpt(*value_), ", expected a string"));
    return "";
  }
  return value_->get<std::string>();
}

int64_t JsonReader::AsInt(int64_t low, int64_t high) const {
  if (!ok()) return low;
  const bool fits = value_->is_number_integer() &&
                    !(value_->is_number_unsigned() && value_->get<uint64_t>() > INT64_MAX) &&
                    value_->get<int64_t>() >= low && value_->get<int64_t>() <= high;
  if (!fits) {
    Invalid(
        absl::StrCat("is ", Excerpt(*value_), ", expected an integer from ", low, " to ", high));
    return low;
  }
  return value_->get<int64_t>();
}

double JsonReader::AsNumber() const {
  if (!ok()) return 0;
  if (!value_->is_number() || !std::isfinite(value_->get<double>())) {
    Invalid(absl::StrCat("is ", Excerpt(*value_), ", expected a number"));
    return 0;
  }
  return value_->get<double>();
}

size_t JsonReader::size() const {
  if (!ok()) return 0;
  if (!value_->is_array()) {
    Invalid(absl::StrCat("is ", Excerpt(*value_), ", expected a list"));
    return 0;
  }
  return value_->size();
}

JsonReader JsonReader::At(size_t i) const {
  return JsonReader((*value_)[i], absl::StrCat(place_, "[", i, "]"), status_);
}

}  // namespace espalier
