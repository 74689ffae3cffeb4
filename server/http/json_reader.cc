#include "server/http/json_reader.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json/bounded_json.h"

namespace espalier::openai {
namespace {

using json = nlohmann::ordered_json;

constexpr size_t kMaxLogitBiases = 65536;  // as in server/inference/requests/generation.h

bool IsToken(const json& value) {
  return value.is_number_integer() && value.get<int64_t>() >= 0 &&
         value.get<int64_t>() <= std::numeric_limits<int>::max() &&
         (!value.is_number_unsigned() || value.get<uint64_t>() <= 0x7FFFFFFF);
}

}  // namespace

bool IsOff(const json& value) {
  return value == false || value == 0 || value == "" || value.empty();
}

std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

size_t BytesOf(const json& value) {
  // Estimated bytes around a value: quotes, colon and comma, or a number's digits.
  constexpr size_t kBytesAroundValue = 8;
  size_t bytes = kBytesAroundValue;
  if (value.is_string()) {
    bytes += value.get_ref<const std::string&>().size();
  } else if (value.is_array()) {
    for (const json& item : value) bytes += BytesOf(item);
  } else if (value.is_object()) {
    for (const auto& [name, field] : value.items()) bytes += name.size() + BytesOf(field);
  }
  return bytes;
}

std::optional<Error> JsonReader::ParseBody(const std::string& body, json* object) {
  std::string twice;
  JsonLimits limits = kRequestJson;
  limits.wide = "logit_bias";
  limits.fields_of_wide = kMaxLogitBiases;
  absl::StatusOr<json> parsed = ParseBoundedJson<json>(body, limits, &twice);
  if (!parsed.ok()) {
    return Error{.message = absl::StrCat("the body ", parsed.status().message())};
  }
  // A duplicate field is ambiguous.
  if (!twice.empty()) {
    return Error{.message = absl::StrCat("field '", twice.substr(0, 200), "' is given twice"),
                 .param = twice.substr(0, 200)};
  }
  if (!parsed->is_object()) return Error{.message = "the body must be a JSON object"};
  *object = *std::move(parsed);
  return std::nullopt;
}

void JsonReader::Fail(const std::string& field, const std::string& message) {
  if (!error_) error_ = Error{.message = message, .param = place_ + field};
}

const json* JsonReader::Find(const std::string& field) {
  seen_.insert(field);
  const auto it = object_.find(field);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void JsonReader::String(const std::string& field, bool required, std::string* out) {
  const json* value = Find(field);
  if (value == nullptr) {
    if (required) Fail(field, absl::StrCat("field '", place_, field, "' is missing"));
  } else if (!value->is_string()) {
    Fail(field,
         absl::StrCat("field '", place_, field, "' must be a string, found ", value->type_name()));
  } else {
    *out = value->get<std::string>();
  }
}

void JsonReader::Number(const std::string& field, double low, double high, double* out) {
  const json* value = Find(field);
  if (value == nullptr) return;
  const double number =
      value->is_number() ? value->get<double>() : std::numeric_limits<double>::quiet_NaN();
  if (!(number >= low && number <= high)) {
    Fail(field, absl::StrCat("field '", place_, field, "' must be a number in ", low, "..", high));
    return;
  }
  *out = number;
}

void JsonReader::Bool(const std::string& field, bool* out) {
  const json* value = Find(field);
  if (value == nullptr) return;
  if (!value->is_boolean()) {
    Fail(field, absl::StrCat("field '", place_, field, "' must be true or false"));
    return;
  }
  *out = value->get<bool>();
}

bool JsonReader::ReadInteger(const std::string& field, int64_t low, int64_t high, int64_t* out) {
  const json* value = Find(field);
  if (value == nullptr) return false;
  const bool fits = value->is_number_unsigned()
                        ? value->get<uint64_t>() <= static_cast<uint64_t>(high)
                        : value->is_number_integer() && value->get<int64_t>() <= high;
  if (!fits || value->get<int64_t>() < low) {
    Fail(field,
         absl::StrCat("field '", place_, field, "' must be an integer in ", low, "..", high));
    return false;
  }
  *out = value->get<int64_t>();
  return true;
}

void JsonReader::Tokens(const std::string& field, size_t most,
                        const std::function<void(int)>& add) {
  const json* value = Find(field);
  if (value == nullptr) return;
  if (!value->is_array() || value->size() > most) {
    Fail(field, absl::StrCat("field '", place_, field, "' must be a list of at most ", most,
                             " token ids"));
    return;
  }
  for (const json& token : *value) {
    if (!IsToken(token)) {
      Fail(field,
           absl::StrCat("field '", place_, field, "': token ids must be integers from 0 on"));
      return;
    }
    add(token.get<int>());
  }
}

void JsonReader::Strings(const std::string& field, size_t most,
                         const std::function<void(const std::string&)>& add) {
  const json* value = Find(field);
  if (value == nullptr) return;
  if (!value->is_array() || value->size() > most) {
    Fail(field,
         absl::StrCat("field '", place_, field, "' must be a list of at most ", most, " strings"));
    return;
  }
  for (const json& text : *value) {
    if (!text.is_string()) {
      Fail(field, absl::StrCat("field '", place_, field, "' must hold strings only"));
      return;
    }
    add(text.get<std::string>());
  }
}

void JsonReader::Unsupported(const std::string& field,
                             const std::function<bool(const json&)>& neutral) {
  without_effect_.insert(field);
  const json* value = Find(field);
  if (value != nullptr && !neutral(*value)) {
    Fail(field, absl::StrCat("field '", place_, field,
                             "' is not supported with this value; leave it out"));
  }
}

void JsonReader::Ignore(std::initializer_list<const char*> fields) {
  for (const char* field : fields) {
    without_effect_.insert(field);
    Find(field);
  }
}

void JsonReader::RefuseUnknown() {
  for (const auto& [name, value] : object_.items()) {
    if (seen_.count(name) > 0) continue;
    std::vector<std::string> known;
    std::set_difference(seen_.begin(), seen_.end(), without_effect_.begin(), without_effect_.end(),
                        std::back_inserter(known));
    Fail(name, absl::StrCat("field '", place_, name.substr(0, 200), "' is not known",
                            DidYouMean(name, known)));
    return;
  }
}

}  // namespace espalier::openai
