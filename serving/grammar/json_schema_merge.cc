#include "serving/grammar/json_schema_merge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "serving/grammar/json_schema_keywords.h"
#include "serving/grammar/json_value_set.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

absl::Status Error(const std::string& key, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", what));
}

// The error if no value satisfies both.
absl::Status NoCommonValue(const std::string& key, absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(key, ": ", what));
}

absl::Status Both(const std::string& key) {
  return Error(
      key, "it occurs in several schemas that apply at once, which is not supported; merge them");
}

// {"allOf": [a, b]}, merged later.
Json AllOfBoth(const Json& a, const Json& b) {
  if (a == b || b == true) return a;
  if (a == true) return b;
  if (a == false || b == false) return false;
  return {{"allOf", Json::array({a, b})}};
}

// Whether all keywords are about constants and types.
bool IsSimple(const Json& schema) {
  if (!schema.is_object()) return false;
  for (const auto& [key, value] : schema.items()) {
    const bool known = key == "type" || key == "const" || key == "enum" || IsAnnotation(key) ||
                       (key == "not" && ExcludesValues(schema));
    if (!known) return false;
  }
  return true;
}

void AddMissing(const Json& more, Json* list) {
  JsonValueSet known(*list);
  for (const Json& value : more) {
    if (known.Add(value)) list->push_back(value);
  }
}

// Linear: for short lists.
bool Contains(const Json& list, const Json& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Without duplicates.
Json ListOf(const Json& types) {
  Json list = Json::array();
  if (types.is_array()) {
    AddMissing(types, &list);
  } else {
    list.push_back(types);
  }
  return list;
}

// Whether the value has one of the types.
bool OfTypes(const Json& list, const Json& value) {
  const bool number = value.is_number();
  // 1.0 is an integer.
  const bool whole =
      number && (value.is_number_integer() || std::floor(value.get<double>()) == value);
  for (const Json& type : list) {
    if ((type == "integer" && whole) || (type == "number" && number) ||
        (type == "string" && value.is_string()) || (type == "boolean" && value.is_boolean()) ||
        (type == "null" && value.is_null()) || (type == "array" && value.is_array()) ||
        (type == "object" && value.is_object())) {
      return true;
    }
  }
  return false;
}

// The intersection of two types or lists of types.
Json CommonTypes(const Json& a, const Json& b) {
  Json common = Json::array();
  const Json left = ListOf(a), right = ListOf(b);
  for (const Json& type : left) {
    if (Contains(right, type) || (type == "integer" && Contains(right, "number"))) {
      common.push_back(type);
    } else if (type == "number" && Contains(right, "integer")) {
      common.push_back("integer");
    }
  }
  return common.size() == 1 ? common[0] : common;
}

// The schema of properties that `schema` does not name.
Json AdditionalOf(const Json& schema) { return schema.value("additionalProperties", Json(true)); }

// The properties of a schema, which must outlive this.
class PropertiesOf {
 public:
  explicit PropertiesOf(const Json& schema) : additional_(AdditionalOf(schema)) {
    const auto properties = schema.find("properties");
    if (properties == schema.end()) return;
    for (const auto& [name, value] : properties->items()) named_[name] = &value;
  }

  // Returns nullopt if the property is forbidden.
  std::optional<Json> Find(const std::string& name) const {
    if (const auto found = named_.find(name); found != named_.end()) return *found->second;
    return additional_ == false ? std::nullopt : std::optional(additional_);
  }

 private:
  absl::flat_hash_map<std::string, const Json*> named_;
  const Json additional_;
};

class Merge {
 public:
  Merge(const Json& a, const Json& b) : a_(a), b_(b), out_(a) {}

  absl::StatusOr<Json> Run() {
    for (const auto& [first, more] : kDependentKeywords) {
      for (const char* key : more) {
        if (!a_.contains(first)) out_.erase(key);  // meaningless alone
      }
    }
    for (const auto& [key, value] : b_.items()) {
      if (key == "properties" || key == "additionalProperties" || !MustMerge(key)) continue;
      if (key == "allOf") {
        if (!value.is_array()) return Error(key, "it must be a list of schemas");
        for (const Json& part : value) {
          if (absl::Status status = Append(part); !status.ok()) return status;
        }
      } else if (!a_.contains(key)) {
        out_[key] = value;
      } else if (a_[key] != value || !SameDependents(key)) {
        if (absl::Status status = Keyword(key, value); !status.ok()) return status;
      }
    }
    if (absl::Status status = Properties(); !status.ok()) return status;
    if (absl::Status status = Items(); !status.ok()) return status;
    if (const auto values = FiniteValues(out_); values && values->empty()) {
      return NoCommonValue(out_.contains("enum") ? "enum" : "const", "no value is left");
    }
    if (absl::Status status = Counts(); !status.ok()) return status;
    return std::move(out_);
  }

 private:
  // Keywords that depend on another keyword.
  static constexpr std::pair<const char*, std::array<const char*, 2>> kDependentKeywords[] = {
      {"if", {"then", "else"}}, {"contains", {"minContains", "maxContains"}}};

  // Whether b's keyword must be merged by itself: it is neither merged with the keyword on which it
  // depends nor meaningless without it.
  bool MustMerge(const std::string& key) const {
    for (const auto& [first, more] : kDependentKeywords) {
      const bool follows = std::find(more.begin(), more.end(), key) != more.end();
      if (follows && (a_.contains(first) || !b_.contains(first))) return false;
    }
    return true;
  }

  // Whether the keywords that depend on `key` are the same in both schemas.
  bool SameDependents(const std::string& key) const {
    for (const auto& [first, more] : kDependentKeywords) {
      if (key != first) continue;
      for (const char* other : more) {
        if (a_.value(other, Json()) != b_.value(other, Json())) return false;
      }
    }
    return true;
  }

  absl::Status Append(const Json& part) {
    Json all = out_.value("allOf", Json::array());
    if (!all.is_array()) return Error("allOf", "it must be a list of schemas");
    all.push_back(part);
    out_["allOf"] = std::move(all);
    return absl::OkStatus();
  }

  // Merges a keyword that both schemas have with different values.
  absl::Status Keyword(const std::string& key, const Json& value) {
    Json& mine = out_[key];
    const bool numbers = mine.is_number() && value.is_number();
    if (key == "minimum" || key == "exclusiveMinimum" || key == "minLength" || key == "minItems" ||
        key == "minProperties") {
      if (!numbers) return Error(key, "it must be a number");
      if (mine < value) mine = value;
    } else if (key == "maximum" || key == "exclusiveMaximum" || key == "maxLength" ||
               key == "maxItems" || key == "maxProperties") {
      if (!numbers) return Error(key, "it must be a number");
      if (value < mine) mine = value;
    } else if (key == "type") {
      mine = CommonTypes(mine, value);
      if (mine.is_array() && mine.empty())
        return NoCommonValue(key, "the types exclude each other");
    } else if (key == "enum") {
      if (!mine.is_array() || !value.is_array()) return Error(key, "it must be a list");
      Json common = Json::array();
      const JsonValueSet theirs(value);
      for (Json& one : mine) {
        if (theirs.Has(one)) common.push_back(std::move(one));
      }
      if (common.empty()) return NoCommonValue(key, "the lists have no value in common");
      mine = std::move(common);
    } else if (key == "const") {
      return NoCommonValue(key, "the values differ");
    } else if (key == "required") {
      if (!mine.is_array() || !value.is_array()) return Error(key, "it must be a list");
      AddMissing(value, &mine);
    } else if (IsAnnotation(key)) {
      // Keep either.
    } else if (key == "propertyNames" || key == "items") {
      mine = AllOfBoth(mine, value);
    } else if (key == "anyOf" || key == "oneOf") {
      return Append({{key, value}});
    } else if (key == "not" && ExcludesValues(a_) && ExcludesValues(b_)) {
      AddMissing(value["enum"], &mine["enum"]);
    } else if (key == "not") {
      return Append({{key, value}});
    } else if (key == "if") {
      Json part = {{key, value}};
      for (const char* branch : {"then", "else"}) {
        if (b_.contains(branch)) part[branch] = b_[branch];
      }
      return Append(part);
    } else if (key == "dependentRequired") {
      if (!mine.is_object() || !value.is_object()) return Error(key, "it must be an object");
      for (const auto& [name, others] : value.items()) {
        Json all = mine.value(name, Json::array());
        if (!all.is_array() || !others.is_array()) return Error(key, "it must hold lists");
        all.insert(all.end(), others.begin(), others.end());
        mine[name] = std::move(all);
      }
    } else if (key == "uniqueItems") {
      mine = true;  // they differ
    } else {
      return Both(key);
    }
    return absl::OkStatus();
  }

  absl::Status Properties() {
    for (const Json* schema : {&a_, &b_}) {
      const auto properties = schema->find("properties");
      if (properties != schema->end() && !properties->is_object()) {
        return Error("properties", "it must be an object");
      }
      // A property that one schema names may match a pattern of the other.
      const Json& other = schema == &a_ ? b_ : a_;
      if (schema->contains("patternProperties") &&
          (other.contains("properties") || other.contains("additionalProperties") ||
           other.contains("patternProperties")) &&
          a_ != b_) {
        return Both("patternProperties");
      }
      if (schema->contains("unevaluatedProperties") && other.contains("properties")) {
        return Both("unevaluatedProperties");
      }
    }
    const PropertiesOf of_a(a_), of_b(b_);
    const JsonValueSet required(out_.value("required", Json::array()));
    Json::object_t properties;
    absl::flat_hash_set<absl::string_view> known;
    for (const Json* schema : {&a_, &b_}) {
      const auto named = schema->find("properties");
      if (named == schema->end()) continue;
      for (const auto& [name, value] : named->items()) {
        if (!known.insert(name).second) continue;
        const std::optional<Json> in_a = of_a.Find(name), in_b = of_b.Find(name);
        const bool needed = required.Has(name);
        if (in_a && in_b) {
          Json joined = AllOfBoth(*in_a, *in_b);
          // Merge at once: an empty result decides which alternatives remain.
          if (*in_a != *in_b && IsSimple(*in_a) && IsSimple(*in_b)) {
            absl::StatusOr<Json> both = MergeSchemas(*in_a, *in_b);
            if (!both.ok() && !absl::IsFailedPrecondition(both.status())) return both.status();
            joined = both.ok() ? *std::move(both) : Json(false);
          }
          if (needed && joined == false) {
            return NoCommonValue("required", absl::StrCat("\"", name, "\" can have no value"));
          }
          // Without checking whether the property is possible.
          properties.emplace_back(name, std::move(joined));
        } else if (needed) {
          return NoCommonValue(
              "required", absl::StrCat("\"", name,
                                       "\" is required, and additionalProperties of another schema "
                                       "is false"));
        }
      }
    }
    if (a_.contains("properties") || b_.contains("properties"))
      out_["properties"] = std::move(properties);
    if (a_.contains("additionalProperties") || b_.contains("additionalProperties")) {
      const Json in_a = AdditionalOf(a_), in_b = AdditionalOf(b_);
      out_["additionalProperties"] =
          in_a == false || in_b == false ? Json(false) : AllOfBoth(in_a, in_b);
    }
    return absl::OkStatus();
  }

  // Whether enough properties are possible. At most one unnamed property counts, and unnamed
  // properties need an explicit schema.
  absl::Status Counts() {
    const Json given = out_.value("required", Json::array());
    const std::set<Json> required(given.begin(), given.end());
    const Json properties = out_.value("properties", Json::object());
    const Json least = out_.value("minProperties", Json());
    const Json most = out_.value("maxProperties", Json());
    if (most.is_number() && most.get<double>() < static_cast<double>(required.size())) {
      return NoCommonValue("maxProperties", "more properties are required");
    }
    if (!least.is_number() || out_.contains("patternProperties")) return absl::OkStatus();
    const bool open = out_.contains("additionalProperties")
                          ? out_["additionalProperties"] != false
                          : properties.empty() && required.empty();
    std::set<Json> names;
    for (const auto& [name, value] : properties.items()) {
      if (value != false) names.insert(name);
    }
    names.insert(required.begin(), required.end());
    if (least.get<double>() > static_cast<double>(names.size()) + (open ? 1 : 0)) {
      return NoCommonValue("minProperties", "there are fewer properties");
    }
    return absl::OkStatus();
  }

  // "items" applies to the items after "prefixItems".
  absl::Status Items() {
    for (const auto& [one, other] : {std::pair(&a_, &b_), std::pair(&b_, &a_)}) {
      const bool tuple = one->contains("prefixItems") || one->contains("additionalItems") ||
                         (one->contains("items") && (*one)["items"].is_array());
      if (!tuple) continue;
      for (const char* key : {"items", "prefixItems", "additionalItems"}) {
        if (other->contains(key) && one->value(key, Json()) != (*other)[key]) return Both(key);
      }
    }
    return absl::OkStatus();
  }

  const Json& a_;
  const Json& b_;
  Json out_;
};

// Whether there are keywords that constrain the contents of lists and objects.
bool SaysMoreThanValues(const Json& schema) {
  for (const auto& [key, value] : schema.items()) {
    const bool known =
        key == "type" || key == "const" || key == "enum" || key == "not" || IsAnnotation(key);
    if (!known) return true;
  }
  return false;
}

// Whether a value that is neither a list nor an object satisfies the keywords of its type; nullopt
// if that needs more than this function checks.
std::optional<bool> Fits(const Json& schema, const Json& value) {
  const auto bound = [&](const char* key) {
    return schema.contains(key) && schema[key].is_number()
               ? std::optional(schema[key].get<double>())
               : std::nullopt;
  };
  if (value.is_number()) {
    if (schema.contains("multipleOf")) return std::nullopt;
    const double number = value.get<double>();
    if (const auto low = bound("minimum"); low && number < *low) return false;
    if (const auto low = bound("exclusiveMinimum"); low && number <= *low) return false;
    if (const auto high = bound("maximum"); high && number > *high) return false;
    if (const auto high = bound("exclusiveMaximum"); high && number >= *high) return false;
  }
  if (value.is_string()) {
    if (schema.contains("pattern") || schema.contains("format")) return std::nullopt;
    const std::string& text = value.get_ref<const std::string&>();
    const auto points = static_cast<double>(
        std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
    if (const auto least = bound("minLength"); least && points < *least) return false;
    if (const auto most = bound("maxLength"); most && points > *most) return false;
  }
  return true;
}

}  // namespace

bool ExcludesValues(const Json& schema) {
  const auto found = schema.find("not");
  return found != schema.end() && found->is_object() && found->size() == 1 &&
         found->contains("enum") && (*found)["enum"].is_array();
}

std::optional<Json> FiniteValues(const Json& schema) {
  if (!schema.is_object()) return std::nullopt;
  const Json types = schema.value("type", Json());
  Json given;
  if (schema.contains("enum") && !schema["enum"].is_array()) return std::nullopt;
  if (schema.contains("const")) {
    given = Json::array({schema["const"]});
  } else if (schema.contains("enum")) {
    given = schema["enum"];
  } else if (!types.is_null()) {
    given = Json::array();
    for (const Json& type : ListOf(types)) {
      if (type != "boolean" && type != "null") return std::nullopt;
      if (type == "null") given.push_back(nullptr);
      if (type == "boolean") given.insert(given.end(), {Json(true), Json(false)});
    }
  } else {
    return std::nullopt;
  }
  Json values = Json::array();
  const Json list = ListOf(types);
  const bool more = SaysMoreThanValues(schema), excludes = ExcludesValues(schema);
  const JsonValueSet excluded = excludes ? JsonValueSet(schema["not"]["enum"]) : JsonValueSet();
  const bool both = schema.contains("const") && schema.contains("enum");
  const JsonValueSet listed = both ? JsonValueSet(schema["enum"]) : JsonValueSet();
  JsonValueSet known;
  for (Json& value : given) {
    const bool nests = value.is_array() || value.is_object();
    if (nests && more) return std::nullopt;
    const std::optional<bool> allowed = nests ? std::optional(true) : Fits(schema, value);
    if (!allowed) return std::nullopt;
    const bool fits = *allowed && (types.is_null() || OfTypes(list, value));
    if (!fits || (both && !listed.Has(value)) || excluded.Has(value)) continue;
    if (known.Add(value)) values.push_back(std::move(value));
  }
  return values;
}

absl::StatusOr<Json> MergeSchemas(const Json& a, const Json& b) {
  for (const Json* schema : {&a, &b}) {
    if (*schema == false) {
      return absl::FailedPreconditionError("nothing satisfies the schema false");
    }
    if (!schema->is_object() && *schema != true) {
      return absl::InvalidArgumentError("a schema must be an object, true or false");
    }
  }
  if (a == true) return b;
  if (b == true) return a;
  return Merge(a, b).Run();
}

}  // namespace espalier
