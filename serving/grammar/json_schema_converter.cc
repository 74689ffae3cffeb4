#include "serving/grammar/json_schema_converter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/grammar/json_grammar.h"
#include "serving/grammar/json_schema_keywords.h"
#include "serving/grammar/json_schema_merge.h"

namespace espalier {
namespace {

constexpr int kMaxSchemaDepth = 64;
constexpr size_t kMaxSchemaRules = 20'000;
constexpr int kMaxSchemas = 100'000;
constexpr int kMaxSchemaCount = 100'000;

}  // namespace

std::string JsonText(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

const char* JsonTypeOf(const nlohmann::ordered_json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "boolean";
  if (value.is_number_integer()) return "integer";
  if (value.is_number()) return "number";
  if (value.is_string()) return "string";
  return value.is_array() ? "array" : "object";
}

JsonSchemaConverter::JsonSchemaConverter(const Json& root, GrammarBudget* budget)
    : root_(root), budget_(*budget) {
  AddJsonRules(&grammar_);
}

absl::StatusOr<Grammar> JsonSchemaConverter::Build() {
  Expression body = Schema(root_, "#", 0);
  // Referenced and merged schemas may reference and merge more.
  while (status_.ok() && !(pending_refs_.empty() && pending_schemas_.empty())) {
    if (!pending_refs_.empty()) {
      const std::string pointer = pending_refs_.back();
      pending_refs_.pop_back();
      SetRule(absl::StrCat("ref ", pointer), Schema(*FindByPointer(root_, pointer), pointer, 0));
    } else {
      const PendingSchema next = std::move(pending_schemas_.back());
      pending_schemas_.pop_back();
      SetRule(next.rule, Schema(next.schema, next.place, 0));
    }
  }
  SetRule("root", std::move(body));
  if (!status_.ok()) return status_;
  return std::move(grammar_);
}

void JsonSchemaConverter::Fail(absl::string_view place, absl::string_view what) {
  if (status_.ok()) {
    status_ = absl::InvalidArgumentError(absl::StrCat("json_schema: ", place, ": ", what));
  }
}

void JsonSchemaConverter::Spend(int64_t parts) {
  const absl::Status status = budget_.ChargeParts(parts);
  if (!status.ok()) Fail("#", status.message());
}

void JsonSchemaConverter::SetRule(const std::string& name, Expression body) {
  Spend(CountParts(body));
  grammar_.rules[name] = std::move(body);
  if (grammar_.rules.size() > kMaxSchemaRules) {
    Fail("#", absl::StrCat("it needs more than ", kMaxSchemaRules, " rules"));
  }
}

std::string JsonSchemaConverter::NewRule(Expression body) {
  std::string name = absl::StrCat("rule-", ++counter_);
  SetRule(name, std::move(body));
  return name;
}

Expression JsonSchemaConverter::Rules(const Dfa& texts, absl::string_view kind,
                                      const std::function<Expression(const CodePoints&)>& form) {
  if (grammar_.rules.size() + static_cast<size_t>(texts.size()) > kMaxSchemaRules) {
    Fail("#", absl::StrCat("it needs more than ", kMaxSchemaRules, " rules"));
    return {};
  }
  Spend(kPartsOfState * texts.size());
  return texts.AddRules(absl::StrCat(kind, "-", ++counter_), form, &grammar_);
}

void JsonSchemaConverter::RejectOtherKeywords(const Json& schema, const std::string& place,
                                              const std::set<std::string>& known) {
  for (const auto& [key, value] : schema.items()) {
    if (known.count(key) > 0 || IsAnnotation(key)) continue;
    Fail(absl::StrCat(place, "/", key), "this keyword is not supported here; leave it out");
  }
}

int JsonSchemaConverter::Count(const Json& schema, const char* key, int fallback,
                               const std::string& place) {
  if (!schema.contains(key)) return fallback;
  const Json& value = schema[key];
  const double number = value.is_number() ? value.get<double>() : -1;
  if (!(number >= 0 && number <= kMaxSchemaCount) || number != static_cast<int>(number)) {
    Fail(absl::StrCat(place, "/", key),
         absl::StrCat("it must be an integer in 0..", kMaxSchemaCount));
    return fallback;
  }
  return static_cast<int>(number);
}

Expression JsonSchemaConverter::Schema(const Json& schema, const std::string& place, int depth) {
  if (depth > kMaxSchemaDepth) Fail(place, absl::StrCat("it nests deeper than ", kMaxSchemaDepth));
  if (++schemas_ > kMaxSchemas) {
    Fail(place, absl::StrCat("it and its parts are more than ", kMaxSchemas, " schemas"));
  }
  if (!status_.ok()) return {};
  if (schema.is_boolean()) {
    if (!schema.get<bool>()) Fail(place, "nothing satisfies the schema false");
    return RuleCall("json-value");
  }
  if (!schema.is_object()) {
    Fail(place, "a schema must be an object, true or false");
    return {};
  }
  if (schema.contains("$ref")) return Reference(schema, place);
  if (schema.contains("allOf")) return AllOf(schema, place, depth);
  for (const char* key : {"anyOf", "oneOf"}) {
    if (schema.contains(key)) return AnyOf(schema, key, place, depth);
  }
  if (schema.contains("if")) return Conditional(schema, place);
  if (schema.contains("not")) return Not(schema, place);
  if (schema.contains("const") || schema.contains("enum")) return Enumeration(schema, place);
  if (!schema.contains("type")) return Untyped(schema, place, depth);
  const Json& type = schema["type"];
  if (type.is_string()) return Typed(schema, type.get<std::string>(), place, depth);
  if (!type.is_array() || type.empty()) {
    Fail(absl::StrCat(place, "/type"), "it must be a string or a list of strings");
    return {};
  }
  return OfSeveralTypes(schema, type, place, depth);
}

Expression JsonSchemaConverter::Untyped(const Json& schema, const std::string& place, int depth) {
  const std::string type = ImpliedType(schema);
  if (!type.empty()) return Typed(schema, type, place, depth);
  RejectOtherKeywords(schema, place, {});
  return RuleCall("json-value");
}

std::string JsonSchemaConverter::ImpliedType(const Json& schema) {
  for (const char* type : {"object", "array", "string", "number"}) {
    for (const std::string& key : KeywordsByType().at(type)) {
      if (schema.contains(key)) return type;
    }
  }
  return "";
}

JsonSchemaConverter::Json JsonSchemaConverter::OnlyOfType(const Json& schema,
                                                          const std::string& type) {
  Json out = schema;
  for (const auto& [other, keys] : KeywordsByType()) {
    for (const std::string& key : keys) {
      const auto own = KeywordsByType().find(type);
      if (own == KeywordsByType().end() || own->second.count(key) == 0) out.erase(key);
    }
  }
  return out;
}

// Keywords of other types do not apply to a value, so each type takes its own.
Expression JsonSchemaConverter::OfSeveralTypes(const Json& schema, const Json& types,
                                               const std::string& place, int depth) {
  std::set<std::string> used = {"type"};
  std::vector<Expression> parts;
  std::set<Json> seen;
  for (const Json& type : types) {
    // Skip duplicates; otherwise nesting would multiply them.
    if (!seen.insert(type).second) continue;
    if (!type.is_string()) {
      Fail(absl::StrCat(place, "/type"), "it must be a list of strings");
      return {};
    }
    const std::string name = type.get<std::string>();
    Json part = {{"type", name}};
    if (const auto it = KeywordsByType().find(name); it != KeywordsByType().end()) {
      for (const std::string& key : it->second) {
        used.insert(key);
        if (schema.contains(key)) part[key] = schema[key];
      }
    }
    parts.push_back(Typed(part, name, place, depth));
  }
  RejectOtherKeywords(schema, place, used);
  return Choice(std::move(parts));
}

Expression JsonSchemaConverter::Typed(const Json& schema, const std::string& type,
                                      const std::string& place, int depth) {
  if (type == "object") return Object(schema, place, depth);
  if (type == "array") return Array(schema, place, depth);
  if (type == "string") return String(schema, place);
  if (type == "integer" || type == "number") {
    Expression number = type == "integer" ? Integer(schema, place) : Number(schema, place);
    Spend(CountParts(number));
    return number;
  }
  RejectOtherKeywords(schema, place, {"type"});
  if (type == "boolean") return Choice({Literal("true"), Literal("false")});
  if (type == "null") return Literal("null");
  Fail(absl::StrCat(place, "/type"),
       absl::StrCat("\"", type.substr(0, 40),
                    "\" is no type; expected object, array, string, integer, number, boolean or "
                    "null"));
  return {};
}

std::vector<JsonSchemaConverter::Json> JsonSchemaConverter::Enumerated(const Json& schema,
                                                                       const std::string& place) {
  const Json type = schema.value("type", Json());
  const Json only = schema.value("enum", Json());
  const Json constant = schema.contains("const") ? Json::array({schema["const"]}) : Json::array();
  const Json& given = schema.contains("const") ? constant : only;
  const bool both = schema.contains("const") && schema.contains("enum");
  std::vector<Json> values;
  if (schema.contains("enum") && !only.is_array()) {
    Fail(absl::StrCat(place, "/enum"), "it must be a list");
    return values;
  }
  for (const Json& value : given) {
    const std::string name = JsonTypeOf(value);
    const auto fits = [&](const Json& wanted) {
      return wanted == name || (wanted == "number" && name == "integer");
    };
    const bool fine = type.is_null() || fits(type) ||
                      (type.is_array() && std::any_of(type.begin(), type.end(), fits));
    const bool listed = !both || std::find(only.begin(), only.end(), value) != only.end();
    if (fine && listed) values.push_back(value);
  }
  if (values.empty()) {
    Fail(absl::StrCat(place, schema.contains("const") ? "/const" : "/enum"),
         "it must hold a value of the type");
  }
  return values;
}

Expression JsonSchemaConverter::Enumeration(const Json& schema, const std::string& place) {
  const std::optional<Json> values = FiniteValues(schema);
  std::set<std::string> known = {"enum", "const", "type"};
  for (const auto& [type, keys] : KeywordsByType()) {
    if (values) known.insert(keys.begin(), keys.end());
  }
  RejectOtherKeywords(schema, place, known);
  if (status_.ok() && values && values->empty()) {
    Fail(absl::StrCat(place, schema.contains("const") ? "/const" : "/enum"),
         "it must hold a value of the type");
  }
  const std::vector<Json> all =
      values ? std::vector<Json>(values->begin(), values->end()) : Enumerated(schema, place);
  std::vector<Expression> parts;
  for (const Json& value : all) parts.push_back(Literal(JsonText(value)));
  return parts.empty() ? Expression() : Choice(std::move(parts));
}

}  // namespace espalier
