#include "serving/grammar/json_schema.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "serving/grammar/json_text.h"
#include "serving/grammar/regex.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;
constexpr size_t kMaxRules = 20'000;
constexpr size_t kMaxSchemaBytes = 1 << 20;
constexpr size_t kMaxKeyBytes = 256;
constexpr size_t kMaxNameBytes = 16 << 10;  // of all names beside additionalProperties
// Finding a key takes as long as its object has keys.
constexpr size_t kMaxKeys = 2048;
constexpr size_t kMaxKeysInAll = 50'000;
constexpr int kMaxCount = 100'000;
constexpr int64_t kMostDigits = 999'999'999'999'999'999;

// Say nothing about what is accepted, or are looked at where they are used.
bool IsAnnotation(const std::string& key) {
  static const std::set<std::string>& keys = *new std::set<std::string>{
      "title",    "description", "default",          "examples",       "example",     "$schema",
      "$id",      "$comment",    "$anchor",          "$defs",          "definitions", "deprecated",
      "readOnly", "writeOnly",   "contentMediaType", "contentEncoding"};
  return keys.count(key) > 0;
}

// JSON Schema validation, 7.3; what these regular expressions accept is within what it defines.
const std::map<std::string, std::string>& Formats() {
  static const auto& formats = *new std::map<std::string, std::string>{
      {"date", "[1-9][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"},
      {"time",
       "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):"
       "[0-5][0-9])"},
      {"date-time",
       "[1-9][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:"
       "[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"},
      {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
      {"ipv4",
       "((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|"
       "1[0-9][0-9]|[1-9]?[0-9])"},
      {"email",
       "[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9]+(-[A-Za-z0-9]+)*"
       "(\\.[A-Za-z0-9]+(-[A-Za-z0-9]+)*)+"},
      {"hostname",
       "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
       "(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?){0,4}"}};
  return formats;
}

const char* TypeOf(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "boolean";
  if (value.is_number_integer()) return "integer";
  if (value.is_number()) return "number";
  if (value.is_string()) return "string";
  return value.is_array() ? "array" : "object";
}

class Builder {
 public:
  explicit Builder(const Json& root) : root_(root) { AddJsonRules(&grammar_); }

  absl::StatusOr<Grammar> Build() {
    Expression body = Schema(root_, "#", 0);
    // What "$ref" named, which may name more.
    while (status_.ok() && !pending_.empty()) {
      const std::string pointer = pending_.back();
      pending_.pop_back();
      Expression rule = Schema(*Find(pointer), pointer, 0);
      SetRule(RefName(pointer), std::move(rule));
    }
    SetRule("root", std::move(body));
    if (!status_.ok()) return status_;
    return std::move(grammar_);
  }

 private:
  void Fail(absl::string_view place, absl::string_view what) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat("json_schema: ", place, ": ", what));
    }
  }

  void SetRule(const std::string& name, Expression body) {
    grammar_.rules[name] = std::move(body);
    if (grammar_.rules.size() > kMaxRules) Fail("#", "it needs more than 20000 rules");
  }

  std::string NewRule(Expression body) {
    std::string name = absl::StrCat("rule-", ++counter_);
    SetRule(name, std::move(body));
    return name;
  }

  static std::string RefName(const std::string& pointer) { return absl::StrCat("ref ", pointer); }

  // Every key must be one of these or an annotation.
  void Only(const Json& schema, const std::string& place, const std::set<std::string>& known) {
    for (const auto& [key, value] : schema.items()) {
      if (known.count(key) > 0 || IsAnnotation(key)) continue;
      Fail(absl::StrCat(place, "/", key), "this keyword is not supported here; leave it out");
    }
  }

  Expression Schema(const Json& schema, const std::string& place, int depth) {
    if (depth > kMaxDepth) Fail(place, absl::StrCat("it nests deeper than ", kMaxDepth));
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
    for (const char* key : {"anyOf", "oneOf", "allOf"}) {
      if (schema.contains(key)) return Combined(schema, key, place, depth);
    }
    if (schema.contains("const")) return Constant(schema, place);
    if (schema.contains("enum")) return Enumeration(schema, place);
    if (!schema.contains("type")) return Untyped(schema, place, depth);
    const Json& type = schema["type"];
    if (type.is_string()) return Typed(schema, type.get<std::string>(), place, depth);
    if (!type.is_array() || type.empty()) {
      Fail(absl::StrCat(place, "/type"), "it must be a string or a list of strings");
      return {};
    }
    return OfSeveralTypes(schema, type, place, depth);
  }

  Expression Untyped(const Json& schema, const std::string& place, int depth) {
    for (const auto& [type, keys] : std::map<std::string, std::vector<const char*>>{
             {"object", {"properties", "required", "additionalProperties"}},
             {"array", {"items", "prefixItems", "minItems", "maxItems"}},
             {"string", {"pattern", "minLength", "maxLength", "format"}}}) {
      for (const char* key : keys) {
        if (schema.contains(key)) return Typed(schema, type, place, depth);
      }
    }
    Only(schema, place, {});
    return RuleCall("json-value");
  }

  // Keywords that speak of other types than a value's do not restrict it, so each type takes its
  // own.
  Expression OfSeveralTypes(const Json& schema, const Json& types, const std::string& place,
                            int depth) {
    static const std::map<std::string, std::set<std::string>>& own =
        *new std::map<std::string, std::set<std::string>>{
            {"object", {"properties", "required", "additionalProperties"}},
            {"array", {"items", "prefixItems", "minItems", "maxItems"}},
            {"string", {"pattern", "minLength", "maxLength", "format"}},
            {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}}};
    std::set<std::string> used = {"type"};
    std::vector<Expression> parts;
    std::set<Json> seen;
    for (const Json& type : types) {
      // A type that comes twice says nothing more; were it followed twice, nesting would multiply.
      if (!seen.insert(type).second) continue;
      if (!type.is_string()) {
        Fail(absl::StrCat(place, "/type"), "it must be a list of strings");
        return {};
      }
      const std::string name = type.get<std::string>();
      Json part = {{"type", name}};
      if (const auto it = own.find(name); it != own.end()) {
        for (const std::string& key : it->second) {
          used.insert(key);
          if (schema.contains(key)) part[key] = schema[key];
        }
      }
      parts.push_back(Typed(part, name, place, depth));
    }
    Only(schema, place, used);
    return Choice(std::move(parts));
  }

  Expression Typed(const Json& schema, const std::string& type, const std::string& place,
                   int depth) {
    if (type == "object") return Object(schema, place, depth);
    if (type == "array") return Array(schema, place, depth);
    if (type == "string") return String(schema, place);
    if (type == "integer") return Integer(schema, place);
    Only(schema, place, {"type"});
    if (type == "number") return RuleCall("json-number");
    if (type == "boolean") return Choice({Literal("true"), Literal("false")});
    if (type == "null") return Literal("null");
    Fail(absl::StrCat(place, "/type"),
         absl::StrCat("\"", type.substr(0, 40),
                      "\" is no type; expected object, array, string, integer, number, boolean or "
                      "null"));
    return {};
  }

  // A JSON pointer of this document ("#", "#/$defs/name").
  const Json* Find(const std::string& pointer) const {
    const Json* at = &root_;
    const std::vector<std::string> steps = absl::StrSplit(pointer, '/');
    for (size_t i = 1; i < steps.size(); ++i) {
      const std::string key = absl::StrReplaceAll(steps[i], {{"~1", "/"}, {"~0", "~"}});
      if (at->is_object() && at->contains(key)) {
        at = &(*at)[key];
      } else if (at->is_array() && !key.empty() && key.size() < 7 &&
                 key.find_first_not_of("0123456789") == std::string::npos &&
                 std::stoul(key) < at->size()) {
        at = &(*at)[std::stoul(key)];
      } else {
        return nullptr;
      }
    }
    return at;
  }

  Expression Reference(const Json& schema, const std::string& place) {
    Only(schema, place, {"$ref"});
    const Json& ref = schema["$ref"];
    const std::string pointer = ref.is_string() ? ref.get<std::string>() : "";
    if (pointer.empty() || (pointer != "#" && pointer.substr(0, 2) != "#/") ||
        Find(pointer) == nullptr) {
      Fail(absl::StrCat(place, "/$ref"),
           "it must name a place in this schema that there is, as \"#/$defs/name\"");
      return {};
    }
    const std::string name = RefName(pointer);
    if (referred_.insert(name).second) pending_.push_back(pointer);
    return RuleCall(name);
  }

  Expression Combined(const Json& schema, const std::string& key, const std::string& place,
                      int depth) {
    Only(schema, place, {key});
    const Json& branches = schema[key];
    const std::string here = absl::StrCat(place, "/", key);
    if (!branches.is_array() || branches.empty()) {
      Fail(here, "it must be a list of schemas");
      return {};
    }
    if (key == "allOf" && branches.size() > 1) {
      Fail(here, "several schemas at once are not supported; write them as one");
      return {};
    }
    if (key == "oneOf") CheckExclusive(branches, here);
    std::vector<Expression> parts;
    for (size_t i = 0; i < branches.size(); ++i) {
      parts.push_back(Schema(branches[i], absl::StrCat(here, "/", i), depth + 1));
    }
    return Choice(std::move(parts));
  }

  // "oneOf" is "anyOf" where no value can satisfy two branches: by their types, or by the constant
  // of a property that all require.
  void CheckExclusive(const Json& branches, const std::string& place) {
    std::set<std::string> seen;
    bool by_type = true;
    std::map<std::string, std::set<std::string>> tags;
    for (const Json& branch : branches) {
      if (!branch.is_object()) return Fail(place, "it must be a list of schemas");
      std::string type = branch.value("type", Json()).is_string()
                             ? branch["type"].get<std::string>()
                             : std::string();
      if (type == "integer") type = "number";
      by_type = by_type && !type.empty() && seen.insert(type).second;
      const Json properties = branch.value("properties", Json::object());
      const Json required = branch.value("required", Json::array());
      if (!properties.is_object() || !required.is_array()) continue;
      for (const auto& [name, property] : properties.items()) {
        const bool needed =
            std::find(required.begin(), required.end(), Json(name)) != required.end();
        if (needed && property.is_object() && property.contains("const")) {
          tags[name].insert(Text(property["const"]));
        }
      }
    }
    if (by_type) return;
    for (const auto& [name, values] : tags) {
      if (values.size() == branches.size()) return;
    }
    Fail(place,
         "its branches may overlap, and then only one of them may hold: give them different types "
         "or a required property with different constants, or write anyOf");
  }

  static std::string Text(const Json& value) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  Expression Constant(const Json& schema, const std::string& place) {
    Only(schema, place, {"const", "type"});
    return Literal(Text(schema["const"]));
  }

  Expression Enumeration(const Json& schema, const std::string& place) {
    Only(schema, place, {"enum", "type"});
    const Json& values = schema["enum"];
    const Json type = schema.value("type", Json());
    std::vector<Expression> parts;
    for (const Json& value : values.is_array() ? values : Json::array()) {
      const std::string name = TypeOf(value);
      const auto fits = [&](const Json& wanted) {
        return wanted == name || (wanted == "number" && name == "integer");
      };
      const bool fine = type.is_null() || fits(type) ||
                        (type.is_array() && std::any_of(type.begin(), type.end(), fits));
      if (fine) parts.push_back(Literal(Text(value)));
    }
    if (parts.empty()) Fail(absl::StrCat(place, "/enum"), "it must list a value of the type");
    return parts.empty() ? Expression() : Choice(std::move(parts));
  }

  // A count from 0 on, or `fallback` if it is not given.
  int Count(const Json& schema, const char* key, int fallback, const std::string& place) {
    if (!schema.contains(key)) return fallback;
    const Json& value = schema[key];
    const double number = value.is_number() ? value.get<double>() : -1;
    if (!(number >= 0 && number <= kMaxCount) || number != static_cast<int>(number)) {
      Fail(absl::StrCat(place, "/", key), absl::StrCat("it must be an integer in 0..", kMaxCount));
      return fallback;
    }
    return static_cast<int>(number);
  }

  Expression String(const Json& schema, const std::string& place) {
    Only(schema, place, {"type", "pattern", "format", "minLength", "maxLength"});
    const bool sized = schema.contains("minLength") || schema.contains("maxLength");
    if (schema.contains("pattern") || schema.contains("format")) {
      const char* key = schema.contains("pattern") ? "pattern" : "format";
      const std::string here = absl::StrCat(place, "/", key);
      if (sized || (schema.contains("pattern") && schema.contains("format"))) {
        Fail(here, "it is not supported together with pattern, format, minLength or maxLength");
      }
      if (!schema[key].is_string()) {
        Fail(here, "it must be a string");
        return {};
      }
      std::string pattern = schema[key].get<std::string>();
      const bool search = *key == 'p';
      if (!search) {
        const auto format = Formats().find(pattern);
        if (format == Formats().end()) {
          std::vector<std::string> known;
          for (const auto& [name, regex] : Formats()) known.push_back(name);
          Fail(here, absl::StrCat("this format is not supported; supported are ",
                                  absl::StrJoin(known, ", ")));
          return {};
        }
        pattern = format->second;
      }
      absl::StatusOr<Expression> value = ParseRegex(pattern, search);
      if (!value.ok()) {
        Fail(here, value.status().message());
        return {};
      }
      return JsonStringOf(*value);
    }
    if (!sized) return RuleCall("json-string");
    const int least = Count(schema, "minLength", 0, place);
    const int most = Count(schema, "maxLength", -1, place);
    if (most >= 0 && most < least) Fail(place, "minLength is more than maxLength");
    return Sequence({Literal("\""), Repeat(RuleCall("json-char"), least, most), Literal("\"")});
  }

  // The bound as an integer, rounded into the range that it allows.
  bool Bound(const Json& schema, const char* key, const std::string& place, bool up, int64_t* out) {
    if (!schema.contains(key)) return false;
    const Json& value = schema[key];
    const double number = value.is_number() ? value.get<double>() : NAN;
    if (!(std::abs(number) < 9e17)) {
      Fail(absl::StrCat(place, "/", key), "it must be a number of at most 18 digits");
      return false;
    }
    if (value.is_number_integer()) {
      *out = value.get<int64_t>();
    } else {
      *out = static_cast<int64_t>(up ? std::ceil(number) : std::floor(number));
    }
    const bool exclusive = key[0] == 'e';
    if (exclusive && static_cast<double>(*out) == number) *out += up ? 1 : -1;
    return true;
  }

  Expression Integer(const Json& schema, const std::string& place) {
    Only(schema, place, {"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"});
    int64_t low = -kMostDigits, high = kMostDigits, bound = 0;
    bool bounded = false;
    for (const char* key : {"minimum", "exclusiveMinimum"}) {
      if (Bound(schema, key, place, true, &bound)) low = std::max(low, bound), bounded = true;
    }
    for (const char* key : {"maximum", "exclusiveMaximum"}) {
      if (Bound(schema, key, place, false, &bound)) high = std::min(high, bound), bounded = true;
    }
    if (!bounded) return RuleCall("json-integer");
    if (low > high) {
      Fail(place, "no integer lies between its minimum and its maximum");
      return {};
    }
    return IntegersBetween(low, high);
  }

  Expression Array(const Json& schema, const std::string& place, int depth) {
    Only(schema, place, {"type", "items", "prefixItems", "minItems", "maxItems"});
    int least = Count(schema, "minItems", 0, place);
    int most = Count(schema, "maxItems", -1, place);
    std::vector<Expression> parts = {Literal("["), RuleCall("json-space")};
    const Json prefix = schema.value("prefixItems", Json::array());
    if (!prefix.is_array()) Fail(absl::StrCat(place, "/prefixItems"), "it must be a list");
    const int fixed = static_cast<int>(prefix.size());
    if (most >= 0 && (most < least || most < fixed)) {
      Fail(absl::StrCat(place, "/maxItems"), "it is less than the items that there must be");
    }
    if (!status_.ok()) return {};
    for (int i = 0; i < fixed; ++i) {
      if (i > 0) parts.push_back(Comma());
      parts.push_back(Schema(prefix[i], absl::StrCat(place, "/prefixItems/", i), depth + 1));
      parts.push_back(RuleCall("json-space"));
    }
    least = std::max(0, least - fixed);
    if (most >= 0) most -= fixed;
    const bool closed =
        schema.contains("items") ? schema["items"] == false : schema.contains("prefixItems");
    if (closed && least > 0) Fail(absl::StrCat(place, "/minItems"), "there are fewer items");
    if (!closed && most != 0 && status_.ok()) {
      const Json items = schema.contains("items") ? schema["items"] : Json(true);
      const std::string item = NewRule(Schema(items, absl::StrCat(place, "/items"), depth + 1));
      const Expression next = Sequence({Comma(), RuleCall(item), RuleCall("json-space")});
      if (fixed > 0) {
        parts.push_back(Repeat(next, least, most));
      } else {
        Expression all = Sequence({RuleCall(item), RuleCall("json-space"),
                                   Repeat(next, std::max(0, least - 1), most < 0 ? -1 : most - 1)});
        parts.push_back(least > 0 ? std::move(all) : Optional(std::move(all)));
      }
    }
    parts.push_back(Literal("]"));
    return Sequence(std::move(parts));
  }

  static Expression Comma() { return Sequence({Literal(","), RuleCall("json-space")}); }

  Expression Object(const Json& schema, const std::string& place, int depth) {
    Only(schema, place, {"type", "properties", "required", "additionalProperties"});
    const bool named = schema.contains("properties");
    if (!named && !schema.contains("required") && !schema.contains("additionalProperties")) {
      return RuleCall("json-object");
    }
    const Json properties = schema.value("properties", Json::object());
    const Json required = schema.value("required", Json::array());
    const Json additional = schema.value("additionalProperties", Json(false));
    if (!properties.is_object()) Fail(absl::StrCat(place, "/properties"), "it must be an object");
    if (!required.is_array()) Fail(absl::StrCat(place, "/required"), "it must be a list");
    if (!status_.ok()) return {};
    struct Member {
      std::string pair;  // the rule of "name": value and the space behind it
      bool required;
    };
    std::vector<Member> members;
    std::vector<std::string> names;
    std::set<std::string> needed;
    for (const Json& name : required) {
      if (!name.is_string()) Fail(absl::StrCat(place, "/required"), "it must list names");
      if (name.is_string()) needed.insert(name.get<std::string>());
    }
    const auto add = [&](const std::string& name, Expression value, bool must) {
      names.push_back(name);
      members.push_back(
          {NewRule(Sequence({Spaced({Literal(Text(Json(name))), Literal(":"), std::move(value)}),
                             RuleCall("json-space")})),
           must});
    };
    for (const auto& [name, property] : properties.items()) {
      Expression value = Schema(property, absl::StrCat(place, "/properties/", name), depth + 1);
      add(name, std::move(value), needed.erase(name) > 0);
    }
    std::string other;  // the value of properties that have no name here
    if (additional != false) {
      other = NewRule(Schema(additional, absl::StrCat(place, "/additionalProperties"), depth + 1));
    }
    for (const std::string& name : needed) {
      const bool possible = schema.contains("additionalProperties") ? !other.empty() : true;
      if (!possible) {
        Fail(absl::StrCat(place, "/required"),
             absl::StrCat("it names \"", name,
                          "\", which is no property and additionalProperties is false"));
      }
      add(name, RuleCall(other.empty() ? "json-value" : other), true);
    }
    // From the last one back: what follows when no member has come yet, and when one has.
    std::string rest[2] = {NewRule(Others(other, names, false, place)),
                           NewRule(Others(other, names, true, place))};
    for (size_t i = members.size(); i > 0 && status_.ok(); --i) {
      const Member& member = members[i - 1];
      std::string before[2];
      for (int after_one = 0; after_one < 2; ++after_one) {
        std::vector<Expression> with;
        if (after_one != 0) with.push_back(Comma());
        with.push_back(RuleCall(member.pair));
        with.push_back(RuleCall(rest[1]));
        std::vector<Expression> ways = {Sequence(std::move(with))};
        if (!member.required) ways.push_back(RuleCall(rest[after_one]));
        before[after_one] = NewRule(Choice(std::move(ways)));
      }
      rest[0] = before[0];
      rest[1] = before[1];
    }
    return Sequence({Literal("{"), RuleCall("json-space"), RuleCall(rest[0]), Literal("}")});
  }

  // Properties without a name in the schema.
  Expression Others(const std::string& value, const std::vector<std::string>& names, bool after_one,
                    const std::string& place) {
    if (value.empty()) return Literal("");
    size_t bytes = 0;
    for (const std::string& name : names) {
      bytes += name.size();
      if (name.size() > kMaxKeyBytes || bytes > kMaxNameBytes) {
        Fail(absl::StrCat(place, "/additionalProperties"),
             absl::StrCat("it is not supported beside a name longer than ", kMaxKeyBytes,
                          " bytes, or more than ", kMaxNameBytes, " bytes of names"));
        return {};
      }
    }
    const Expression pair = Sequence(
        {Spaced({JsonStringExcept(names), Literal(":"), RuleCall(value)}), RuleCall("json-space")});
    const std::string next = NewRule(pair);
    Expression more = Repeat(Sequence({Comma(), RuleCall(next)}), 0);
    if (after_one) return more;
    return Optional(Sequence({RuleCall(next), std::move(more)}));
  }

  const Json& root_;
  Grammar grammar_;
  std::set<std::string> referred_;
  std::vector<std::string> pending_;
  int counter_ = 0;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<Grammar> ParseJsonSchema(absl::string_view schema) {
  if (schema.size() > kMaxSchemaBytes) {
    return absl::InvalidArgumentError("json_schema: it is larger than 1 MiB");
  }
  // The parser needs no stack, but those who walk the value do.
  bool deep = false, wide = false;
  size_t keys = 0;
  std::vector<size_t> open;  // keys so far of the objects around
  const auto watch = [&](int depth, Json::parse_event_t event, Json&) {
    if (event == Json::parse_event_t::object_start) open.push_back(0);
    if (event == Json::parse_event_t::object_end && !open.empty()) open.pop_back();
    if (event == Json::parse_event_t::key && !open.empty()) {
      wide = wide || ++open.back() > kMaxKeys || ++keys > kMaxKeysInAll;
    }
    deep = deep || depth > 4 * kMaxDepth;
    return !deep && !wide;
  };
  const Json root = Json::parse(schema.begin(), schema.end(), watch, /*allow_exceptions=*/false);
  if (deep) return absl::InvalidArgumentError("json_schema: it nests too deep");
  if (wide) {
    return absl::InvalidArgumentError(absl::StrCat("json_schema: it has more than ", kMaxKeys,
                                                   " keys in one object, or ", kMaxKeysInAll,
                                                   " in all"));
  }
  if (root.is_discarded()) return absl::InvalidArgumentError("json_schema: it is not valid JSON");
  return Builder(root).Build();
}

Grammar JsonObjectGrammar() {
  Grammar grammar;
  AddJsonRules(&grammar);
  grammar.root = "json-object";
  return grammar;
}

}  // namespace espalier
