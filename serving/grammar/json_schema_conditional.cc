// "not", "if" and "dependentRequired", as alternatives.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/grammar/json_schema_converter.h"
#include "serving/grammar/json_schema_merge.h"
#include "serving/grammar/json_schema_negation.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

// Allows any properties if the schema says nothing about properties, so that naming one later does
// not restrict the others.
Json AllowAnyProperty(Json schema) {
  for (const char* key : {"properties", "required", "patternProperties", "additionalProperties",
                          "unevaluatedProperties"}) {
    if (schema.contains(key)) return schema;
  }
  schema["additionalProperties"] = true;
  return schema;
}

}  // namespace

std::optional<std::vector<JsonSchemaConverter::Json>> JsonSchemaConverter::Negated(
    const Json& schema, const std::string& place) {
  auto resolve = [&](const Json& one) { return Resolved(one, place); };
  absl::StatusOr<std::vector<Json>> negated = NegateSchema(schema, resolve);
  if (negated.ok() && status_.ok()) return *std::move(negated);
  if (!negated.ok()) Fail(place, negated.status().message());
  return std::nullopt;
}

std::optional<JsonSchemaConverter::Json> JsonSchemaConverter::TryMerged(const Json& a,
                                                                        const Json& b,
                                                                        const std::string& place) {
  if (!status_.ok()) return std::nullopt;
  const Json left = a.is_object() && a.contains("$ref") ? Resolved(a, place) : a;
  const Json right = b.is_object() && b.contains("$ref") ? Resolved(b, place) : b;
  absl::StatusOr<Json> both = MergeSchemas(left, right);
  if (absl::IsFailedPrecondition(both.status())) {
    budget_.steps -= static_cast<DfaBudget>(10 * (JsonText(left).size() + JsonText(right).size()));
    if (budget_.steps < 0) Fail(place, "its alternatives are too many; write it as fewer schemas");
    return std::nullopt;
  }
  Json merged = ChargeMerge(std::move(both), left, right, place);
  return status_.ok() ? std::optional(std::move(merged)) : std::nullopt;
}

Expression JsonSchemaConverter::OneOfThese(const std::vector<Json>& schemas,
                                           const std::string& place) {
  std::vector<Expression> ways;
  for (const Json& schema : schemas) ways.push_back(SharedRule(schema, place));
  if (ways.empty()) Fail(place, "no value satisfies it and the keywords beside it");
  return status_.ok() ? Choice(std::move(ways)) : Expression();
}

Expression JsonSchemaConverter::Conditional(const Json& schema, const std::string& place) {
  const Json condition = schema["if"];
  const Json then = schema.value("then", Json(true)), otherwise = schema.value("else", Json(true));
  Json rest = schema;
  for (const char* key : {"if", "then", "else"}) rest.erase(key);
  const std::string here = absl::StrCat(place, "/if");
  std::vector<Json> ways;
  const auto add = [&](const Json& one, const Json& other, const std::string& at) {
    std::optional<Json> way = TryMerged(rest, one, here);
    if (way) way = TryMerged(*way, other, at);
    if (way && std::find(ways.begin(), ways.end(), *way) == ways.end()) ways.push_back(*way);
  };
  add(condition, then, absl::StrCat(place, "/then"));
  const auto negated = Negated(condition, here);
  if (!negated) return {};
  for (const Json& one : *negated) add(one, otherwise, absl::StrCat(place, "/else"));
  return OneOfThese(ways, here);
}

Expression JsonSchemaConverter::Not(const Json& schema, const std::string& place) {
  const std::string here = absl::StrCat(place, "/not");
  if (ExcludesValues(schema)) return Excluding(schema, place);
  Json rest = schema;
  rest.erase("not");
  const auto negated = Negated(schema["not"], here);
  if (!negated) return {};
  std::vector<Json> ways;
  for (const Json& one : *negated) {
    const bool of_object = one.is_object() && one.contains("properties");
    std::optional<Json> way = TryMerged(of_object ? AllowAnyProperty(rest) : rest, one, here);
    if (way) ways.push_back(*std::move(way));
  }
  return OneOfThese(ways, here);
}

Expression JsonSchemaConverter::Excluding(const Json& schema, const std::string& place) {
  const std::string here = absl::StrCat(place, "/not");
  if (const std::optional<Json> values = FiniteValues(schema)) {
    if (values->empty()) Fail(here, "no value is left");
    return status_.ok() ? Enumeration({{"enum", *values}}, place) : Expression();
  }
  const Json& excluded = schema["not"]["enum"];
  Json types = schema.value("type", Json());
  if (types.is_null()) types = Json(ImpliedType(schema));
  if (types == "") types = {"object", "array", "string", "number", "boolean", "null"};
  std::vector<Json> ways;
  std::set<Json> seen;
  for (const Json& type : types.is_array() ? types : Json::array({types})) {
    if (!seen.insert(type).second) continue;
    Json way = schema;
    way.erase("not");
    way["type"] = type;
    Json of_type = Json::array();
    for (const Json& value : excluded) {
      const bool number = value.is_number() && (type == "number" || type == "integer");
      if (number || type == JsonTypeOf(value)) of_type.push_back(value);
    }
    if (type == "boolean" || type == "null") {
      way["not"] = schema["not"];
      const std::optional<Json> values = FiniteValues(way);
      if (!values->empty()) ways.push_back({{"enum", *values}});
      continue;
    }
    if (!of_type.empty() && type != "string" && type != "integer") {
      Fail(here, absl::StrCat("values of the type ", JsonText(type),
                              " can be left out of a list only; say what is accepted"));
      return {};
    }
    if (!of_type.empty()) way["not"] = {{"enum", std::move(of_type)}};
    ways.push_back(std::move(way));
  }
  std::vector<Expression> all;
  for (const Json& way : ways) {
    const std::string type = way.contains("enum") ? "" : way["type"].get<std::string>();
    // Keywords of other types do not apply.
    const Json own = type.empty() ? way : OnlyOfType(way, type);
    all.push_back(own.contains("not") ? Typed(own, type, place, 0) : SharedRule(own, place));
  }
  if (all.empty()) Fail(here, "no value is left");
  return status_.ok() ? Choice(std::move(all)) : Expression();
}

Expression JsonSchemaConverter::Dependent(const Json& schema, const std::string& place) {
  const std::string here = absl::StrCat(place, "/dependentRequired");
  const Json triggers = schema["dependentRequired"];
  Json rest = schema;
  rest.erase("dependentRequired");
  if (!triggers.is_object()) Fail(here, "it must be an object");
  if (!rest.value("required", Json::array()).is_array()) {
    Fail(absl::StrCat(place, "/required"), "it must be a list");
  }
  if (!rest.value("properties", Json::object()).is_object()) {
    Fail(absl::StrCat(place, "/properties"), "it must be an object");
  }
  if (!status_.ok()) return {};
  rest = AllowAnyProperty(std::move(rest));
  rest["type"] = "object";
  Json left = Json::object();  // the triggers after the first one
  for (const auto& [name, others] : triggers.items()) {
    if (!others.is_array()) {
      Fail(absl::StrCat(here, "/", name), "it must list names");
      return {};
    }
    if (name != triggers.begin().key()) left[name] = others;
  }
  if (triggers.empty()) return SharedRule(rest, place);
  const std::string& trigger = triggers.begin().key();
  const Json required = rest.value("required", Json::array());
  const bool there = std::find(required.begin(), required.end(), Json(trigger)) != required.end();
  std::vector<Json> ways;
  const auto add = [&](const Json& more) {
    std::optional<Json> way = TryMerged(rest, more, here);
    if (!way) return;
    if (!left.empty()) (*way)["dependentRequired"] = left;
    ways.push_back(*std::move(way));
  };
  if (!there) add({{"properties", {{trigger, false}}}});
  Json all = *triggers.begin();
  all.push_back(trigger);
  add({{"required", std::move(all)}});
  return OneOfThese(ways, here);
}

}  // namespace espalier
