#include "serving/grammar/json_schema_negation.h"

#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/grammar/json_schema_keywords.h"
#include "serving/grammar/json_schema_merge.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

absl::Status Unsupported(const std::string& key) {
  return absl::UnimplementedError(
      absl::StrCat(key, ": what it does not accept is not supported; say what is accepted"));
}

// A keyword that applies to one type, its opposite, and what to add to the bound.
struct Opposite {
  const char *key, *type, *other;
  int add;
};
constexpr Opposite kOpposites[] = {{"minimum", "number", "exclusiveMaximum", 0},
                                   {"maximum", "number", "exclusiveMinimum", 0},
                                   {"exclusiveMinimum", "number", "maximum", 0},
                                   {"exclusiveMaximum", "number", "minimum", 0},
                                   {"minLength", "string", "maxLength", -1},
                                   {"maxLength", "string", "minLength", 1},
                                   {"minItems", "array", "maxItems", -1},
                                   {"maxItems", "array", "minItems", 1},
                                   {"minProperties", "object", "maxProperties", -1},
                                   {"maxProperties", "object", "minProperties", 1}};

class Negation {
 public:
  explicit Negation(const Json& schema) : schema_(schema) {}

  absl::StatusOr<std::vector<Json>> Run() {
    if (std::optional<Json> values = FiniteValues(schema_); values && OnlyValues()) {
      // Keep the constants that have the type.
      if (values->empty()) {
        out_.push_back(true);
      } else {
        out_.push_back({{"not", {{"enum", *std::move(values)}}}});
      }
      return std::move(out_);
    }
    for (const auto& [key, value] : schema_.items()) {
      if (IsAnnotation(key)) continue;
      if (absl::Status status = Keyword(key, value); !status.ok()) return status;
    }
    return std::move(out_);
  }

 private:
  bool OnlyValues() const {
    bool values = false;
    for (const auto& [key, value] : schema_.items()) {
      if (key != "type" && key != "const" && key != "enum" && !IsAnnotation(key)) return false;
      values = values || key == "const" || key == "enum";
    }
    return values;
  }

  absl::Status Keyword(const std::string& key, const Json& value) {
    for (const Opposite& o : kOpposites) {
      if (key == o.key) return Bound(o, value);
    }
    if (key == "type") return Type(value);
    if (key == "const") {
      out_.push_back({{"not", {{"enum", Json::array({value})}}}});
    } else if (key == "enum") {
      out_.push_back({{"not", {{"enum", value}}}});
    } else if (key == "not") {
      out_.push_back(value);
    } else if (key == "required" && value.is_array()) {
      for (const Json& name : value) {
        if (!name.is_string()) return Unsupported(key);
        out_.push_back({{"type", "object"}, {"properties", {{name.get<std::string>(), false}}}});
      }
    } else if (key == "properties" && value.is_object()) {
      for (const auto& [name, property] : value.items()) Property(name, property);
    } else if (key == "dependentRequired" && value.is_object()) {
      for (const auto& [name, others] : value.items()) {
        if (!others.is_array()) return Unsupported(key);
        for (const Json& other : others) {
          if (!other.is_string()) return Unsupported(key);
          out_.push_back({{"type", "object"},
                          {"required", Json::array({name})},
                          {"properties", {{other.get<std::string>(), false}}}});
        }
      }
    } else if (key == "allOf" && value.is_array()) {
      for (const Json& part : value) out_.push_back({{"not", part}});
    } else if (key == "anyOf" && value.is_array()) {
      Json all = Json::array();
      for (const Json& part : value) all.push_back({{"not", part}});
      out_.push_back({{"allOf", std::move(all)}});
    } else {
      return Unsupported(key);
    }
    return absl::OkStatus();
  }

  absl::Status Type(const Json& types) {
    std::set<std::string> given;
    for (const Json& type : types.is_array() ? types : Json::array({types})) {
      if (!type.is_string()) return Unsupported("type");
      given.insert(type.get<std::string>());
    }
    // There is no type for numbers that are not integers.
    if (given.count("integer") > 0 && given.count("number") == 0) return Unsupported("type");
    Json left = Json::array();
    for (const char* type : {"object", "array", "string", "number", "boolean", "null"}) {
      if (given.count(type) == 0) left.push_back(type);
    }
    if (!left.empty()) out_.push_back({{"type", std::move(left)}});
    return absl::OkStatus();
  }

  absl::Status Bound(const Opposite& o, const Json& value) {
    if (!value.is_number()) return Unsupported(o.key);
    const bool count = o.add != 0;
    if (!count) {
      out_.push_back({{"type", o.type}, {o.other, value}});
      return absl::OkStatus();
    }
    const double number = value.get<double>();
    constexpr double kMost = 1e9;  // counts that fit an int
    if (!(number >= 0 && number <= kMost) || number != std::floor(number))
      return Unsupported(o.key);
    const int bound = static_cast<int>(number) + o.add;
    if (bound >= 0) out_.push_back({{"type", o.type}, {o.other, bound}});
    return absl::OkStatus();
  }

  void Property(const std::string& name, const Json& property) {
    Json there = {{"type", "object"}, {"required", Json::array({name})}};
    if (property == true || property == Json::object()) return;
    if (property != false) {
      there["properties"][name] = {{"not", property}};
      if (property.is_object()) {
        const absl::StatusOr<std::vector<Json>> contrary = Negation(property).Run();
        if (contrary.ok() && contrary->empty()) return;
        if (contrary.ok() && contrary->size() == 1) there["properties"][name] = contrary->front();
      }
    }
    out_.push_back(std::move(there));
  }

  const Json& schema_;
  std::vector<Json> out_;
};

}  // namespace

absl::StatusOr<std::vector<Json>> NegateSchema(const Json& schema,
                                               const std::function<Json(const Json&)>& resolve) {
  if (schema == false) return std::vector<Json>{true};
  if (schema == true) return std::vector<Json>{};
  if (!schema.is_object()) {
    return absl::InvalidArgumentError("a schema must be an object, true or false");
  }
  const Json resolved = schema.contains("$ref") ? resolve(schema) : schema;
  if (!resolved.is_object()) return NegateSchema(resolved, resolve);
  return Negation(resolved).Run();
}

}  // namespace espalier
