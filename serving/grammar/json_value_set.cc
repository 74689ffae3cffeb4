#include "serving/grammar/json_value_set.h"

#include <cmath>
#include <cstdint>
#include <map>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

void AppendCanonical(const Json& value, std::string* out) {
  if (value.is_array()) {
    out->push_back('[');
    for (const Json& one : value) {
      AppendCanonical(one, out);
      out->push_back(',');
    }
    out->push_back(']');
  } else if (value.is_object()) {
    std::map<std::string, const Json*> members;
    for (const auto& [key, member] : value.items()) members[key] = &member;
    out->push_back('{');
    for (const auto& [key, member] : members) {
      AppendCanonical(Json(key), out);
      out->push_back(':');
      AppendCanonical(*member, out);
      out->push_back(',');
    }
    out->push_back('}');
  } else {
    const double number = value.is_number_float() ? value.get<double>() : 0.5;
    constexpr double kMostInteger = 9.2e18;
    if (number == std::floor(number) && std::abs(number) < kMostInteger) {
      absl::StrAppend(out, static_cast<int64_t>(number));
    } else {
      out->append(value.dump(-1, ' ', false, Json::error_handler_t::replace));
    }
  }
}

}  // namespace

std::string CanonicalJson(const Json& value) {
  std::string out;
  AppendCanonical(value, &out);
  return out;
}

JsonValueSet::JsonValueSet(const Json& list) {
  for (const Json& value : list) Add(value);
}

bool JsonValueSet::Has(const Json& value) const {
  return !texts_.empty() && texts_.contains(CanonicalJson(value));
}

bool JsonValueSet::Add(const Json& value) { return texts_.insert(CanonicalJson(value)).second; }

}  // namespace espalier
