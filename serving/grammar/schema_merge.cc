#include "serving/grammar/schema_merge.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

absl::Status Error(const std::string& key, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", what));
}

absl::Status Both(const std::string& key) {
  return Error(key, "it comes in several schemas at once, which is not supported; write one");
}

// Both schemas, to be merged when their turn comes.
Json Joined(const Json& a, const Json& b) {
  if (a == b || b == true) return a;
  if (a == true) return b;
  return {{"allOf", Json::array({a, b})}};
}

bool Contains(const Json& list, const Json& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

Json ListOf(const Json& types) { return types.is_array() ? types : Json::array({types}); }

// Of two types or lists of them.
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

// What "additionalProperties" says of a property that a schema does not name.
Json AdditionalOf(const Json& schema) { return schema.value("additionalProperties", Json(true)); }

// What a schema says of a property: nullopt if it may not be there.
std::optional<Json> PropertyIn(const Json& schema, const std::string& name) {
  const auto properties = schema.find("properties");
  if (properties != schema.end() && properties->contains(name)) return (*properties)[name];
  Json other = AdditionalOf(schema);
  if (other == false) return std::nullopt;
  return other;
}

class Merge {
 public:
  Merge(const Json& a, const Json& b) : a_(a), b_(b), out_(a) {}

  absl::StatusOr<Json> Run() {
    for (const auto& [key, value] : b_.items()) {
      if (key == "properties" || key == "additionalProperties") continue;
      if (key == "allOf") {
        if (!value.is_array()) return Error(key, "it must be a list of schemas");
        for (const Json& part : value) {
          if (absl::Status status = Append(part); !status.ok()) return status;
        }
      } else if (!a_.contains(key)) {
        out_[key] = value;
      } else if (a_[key] != value) {
        if (absl::Status status = Keyword(key, value); !status.ok()) return status;
      }
    }
    if (absl::Status status = Properties(); !status.ok()) return status;
    if (absl::Status status = Items(); !status.ok()) return status;
    return std::move(out_);
  }

 private:
  absl::Status Append(const Json& part) {
    Json all = out_.value("allOf", Json::array());
    if (!all.is_array()) return Error("allOf", "it must be a list of schemas");
    all.push_back(part);
    out_["allOf"] = std::move(all);
    return absl::OkStatus();
  }

  // That both have, and not alike.
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
      if (mine.is_array() && mine.empty()) return Error(key, "the types exclude each other");
    } else if (key == "enum") {
      if (!mine.is_array() || !value.is_array()) return Error(key, "it must be a list");
      Json common = Json::array();
      for (const Json& one : mine) {
        if (Contains(value, one)) common.push_back(one);
      }
      if (common.empty()) return Error(key, "the lists have no value in common");
      mine = std::move(common);
    } else if (key == "const") {
      return Error(key, "the values differ");
    } else if (key == "required") {
      if (!mine.is_array() || !value.is_array()) return Error(key, "it must be a list");
      for (const Json& name : value) {
        if (!Contains(mine, name)) mine.push_back(name);
      }
    } else if (IsAnnotation(key)) {
      // Either will do.
    } else if (key == "propertyNames" || key == "items") {
      mine = Joined(mine, value);
    } else if (key == "anyOf" || key == "oneOf") {
      return Append({{key, value}});
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
      // A property that one names may be matched by the other's.
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
    Json properties = Json::object();
    const Json none = Json::object();
    for (const Json* schema : {&a_, &b_}) {
      const auto named = schema->find("properties");
      for (const auto& [name, value] : (named != schema->end() ? *named : none).items()) {
        if (properties.contains(name)) continue;
        const std::optional<Json> in_a = PropertyIn(a_, name), in_b = PropertyIn(b_, name);
        const auto required = out_.find("required");
        if (in_a && in_b) {
          properties[name] = Joined(*in_a, *in_b);
        } else if (required != out_.end() && Contains(*required, name)) {
          return Error("required",
                       absl::StrCat("\"", name,
                                    "\" is required, and additionalProperties of another schema "
                                    "is false"));
        }
      }
    }
    if (a_.contains("properties") || b_.contains("properties")) out_["properties"] = properties;
    if (a_.contains("additionalProperties") || b_.contains("additionalProperties")) {
      const Json in_a = AdditionalOf(a_), in_b = AdditionalOf(b_);
      out_["additionalProperties"] =
          in_a == false || in_b == false ? Json(false) : Joined(in_a, in_b);
    }
    return absl::OkStatus();
  }

  // "items" speaks of what "prefixItems" leaves.
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

}  // namespace

bool IsAnnotation(const std::string& key) {
  static const std::set<std::string>& keys = *new std::set<std::string>{
      "title",           "description",  "default",  "examples",  "example",
      "$schema",         "$id",          "$comment", "$anchor",   "$defs",
      "definitions",     "deprecated",   "readOnly", "writeOnly", "contentMediaType",
      "contentEncoding", "discriminator"};
  return keys.count(key) > 0 || absl::StartsWith(key, "x-");
}

absl::StatusOr<Json> MergeSchemas(const Json& a, const Json& b) {
  for (const Json* schema : {&a, &b}) {
    if (*schema == false) {
      return absl::InvalidArgumentError("nothing satisfies the schema false");
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
