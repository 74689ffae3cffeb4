// Schemas of objects.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/grammar/json_grammar.h"
#include "serving/grammar/json_schema_converter.h"

namespace espalier {
namespace {

constexpr size_t kMaxKeyBytes = 256;
constexpr size_t kMaxNameBytes = 16 << 10;  // of all names together

Expression PropertySeparator() { return Sequence({Literal(","), RuleCall("json-space")}); }

}  // namespace

Expression JsonSchemaConverter::Object(const Json& schema, const std::string& place, int depth) {
  RejectOtherKeywords(schema, place,
                      {"type", "properties", "required", "additionalProperties",
                       "patternProperties", "propertyNames", "minProperties", "maxProperties",
                       "unevaluatedProperties", "dependentRequired"});
  if (schema.contains("dependentRequired")) return Dependent(schema, place);
  // No property is unevaluated here.
  if (schema.contains("unevaluatedProperties") && schema["unevaluatedProperties"] != false) {
    Fail(absl::StrCat(place, "/unevaluatedProperties"), "it is supported as false only");
  }
  const Counts counts{Count(schema, "minProperties", 0, place),
                      Count(schema, "maxProperties", -1, place)};
  const bool any = !schema.contains("properties") && !schema.contains("required") &&
                   !schema.contains("patternProperties");
  const Json additional =
      schema.value("additionalProperties", Json(any && !schema.contains("unevaluatedProperties")));
  if (any && additional == true && counts.least == 0 && counts.most < 0 &&
      !schema.contains("propertyNames")) {
    return RuleCall("json-object");
  }
  const Json properties = schema.value("properties", Json::object());
  const Json required = schema.value("required", Json::array());
  if (!properties.is_object()) Fail(absl::StrCat(place, "/properties"), "it must be an object");
  if (!required.is_array()) Fail(absl::StrCat(place, "/required"), "it must be a list");
  if (!status_.ok()) return {};
  std::set<std::string> needed;
  for (const Json& name : required) {
    if (!name.is_string()) Fail(absl::StrCat(place, "/required"), "it must list names");
    if (name.is_string()) needed.insert(name.get<std::string>());
  }
  std::vector<Member> members;
  std::vector<std::string> names;
  const auto add = [&](const std::string& name, Expression value, bool must) {
    names.push_back(name);
    members.push_back({Pair(Literal(JsonText(Json(name))), std::move(value)), must});
  };
  for (const auto& [name, property] : properties.items()) {
    const bool must = needed.erase(name) > 0;
    if (property == false && !must) {  // forbidden
      names.push_back(name);
      continue;
    }
    Expression value = Schema(property, absl::StrCat(place, "/properties/", name), depth + 1);
    add(name, std::move(value), must);
  }
  std::string others_value;  // the rule of a required property without a schema
  for (const std::string& name : needed) {
    if (schema.contains("additionalProperties") && additional == false) {
      Fail(absl::StrCat(place, "/required"),
           absl::StrCat("it names \"", name,
                        "\", which is no property and additionalProperties is false"));
    }
    if (others_value.empty()) {
      // Without "additionalProperties" it accepts any value.
      const Json value = schema.contains("additionalProperties") ? additional : Json(true);
      others_value =
          NewRule(Schema(value, absl::StrCat(place, "/additionalProperties"), depth + 1));
    }
    add(name, RuleCall(others_value), true);
  }
  if (schema.contains("propertyNames") || schema.contains("patternProperties")) {
    CheckNames(schema, names, place);
  }
  std::string other;
  std::vector<Expression> pairs = OtherPairs(schema, additional, names, place, depth);
  if (!pairs.empty()) other = NewRule(Choice(std::move(pairs)));
  const std::string first = Members(members, other, counts, place);
  return Sequence({Literal("{"), RuleCall("json-space"), RuleCall(first), Literal("}")});
}

std::string JsonSchemaConverter::Pair(Expression key, Expression value) {
  return NewRule(Sequence(
      {WithSpaces({std::move(key), Literal(":"), std::move(value)}), RuleCall("json-space")}));
}

void JsonSchemaConverter::CheckNames(const Json& schema, const std::vector<std::string>& names,
                                     const std::string& place) {
  if (!status_.ok() || names.empty()) return;
  const auto accepts = [&](const Dfa& texts, const std::string& name) {
    budget_.steps -= static_cast<int64_t>(name.size());
    if (budget_.steps < 0) {
      Fail(place, "its names are too long and its patterns too many to be compared");
    }
    return status_.ok() && texts.Accepts(name);
  };
  if (schema.contains("propertyNames") && schema["propertyNames"].is_object()) {
    const Dfa allowed = KeyTexts(schema["propertyNames"], absl::StrCat(place, "/propertyNames"));
    for (const std::string& name : names) {
      if (status_.ok() && !accepts(allowed, name)) {
        Fail(absl::StrCat(place, "/propertyNames"),
             absl::StrCat("it does not allow the property \"", name, "\""));
      }
    }
  }
  const Json patterns = schema.value("patternProperties", Json::object());
  for (const auto& [pattern, value] : patterns.items()) {
    const Dfa matched =
        StringTexts({{"pattern", pattern}}, absl::StrCat(place, "/patternProperties/", pattern));
    for (const std::string& name : names) {
      if (!status_.ok() || !accepts(matched, name)) continue;
      Fail(absl::StrCat(place, "/patternProperties/", pattern),
           absl::StrCat("it matches \"", name, "\", which is named too; that is not supported"));
    }
  }
}

Dfa JsonSchemaConverter::KeyTexts(const Json& schema, const std::string& place) {
  const Json resolved = Resolved(schema, place);
  if (resolved == true) return StringTexts(Json::object(), place);
  if (!resolved.is_object()) {
    Fail(place, "it must be a schema of strings");
    return {};
  }
  RejectOtherKeywords(resolved, place,
                      {"type", "pattern", "format", "minLength", "maxLength", "enum", "const"});
  if (resolved.contains("type") && resolved["type"] != "string") {
    Fail(absl::StrCat(place, "/type"), "names are strings");
  }
  return StringTexts(resolved, place);
}

std::vector<Expression> JsonSchemaConverter::OtherPairs(const Json& schema, const Json& additional,
                                                        const std::vector<std::string>& names,
                                                        const std::string& place, int depth) {
  std::vector<Expression> pairs;
  const Json patterns = schema.value("patternProperties", Json::object());
  if (!patterns.is_object()) {
    Fail(absl::StrCat(place, "/patternProperties"), "it must be an object");
  }
  if (!status_.ok()) return {};
  const auto value_of = [&](const Json& value, const std::string& key) {
    return Schema(value, absl::StrCat(place, "/", key), depth + 1);
  };
  if (patterns.empty() && !schema.contains("propertyNames")) {
    if (additional == false) return {};
    Expression value = value_of(additional, "additionalProperties");
    pairs.push_back(RuleCall(Pair(KeyExcept(names, place), std::move(value))));
    return pairs;
  }
  Dfa left = schema.contains("propertyNames")
                 ? KeyTexts(schema["propertyNames"], absl::StrCat(place, "/propertyNames"))
                 : StringTexts(Json::object(), place);
  const auto take = [&](absl::StatusOr<Dfa> texts, const std::string& key) {
    if (texts.ok()) return *std::move(texts);
    Fail(absl::StrCat(place, "/", key), texts.status().message());
    return Dfa();
  };
  if (!names.empty()) {
    std::vector<Expression> literals;
    for (const std::string& name : names) literals.push_back(Literal(name));
    const Dfa named = take(Dfa::From(Choice(std::move(literals)), &budget_.steps), "properties");
    left = take(left.Without(named, &budget_.steps), "properties");
  }
  const auto add = [&](const Dfa& keys, Expression value) {
    if (!status_.ok() || keys.empty()) return;
    Expression key = Quoted(Rules(keys, "key", JsonCharacterOf));
    pairs.push_back(RuleCall(Pair(std::move(key), std::move(value))));
  };
  std::vector<Dfa> before;
  for (const auto& [pattern, value] : patterns.items()) {
    const std::string here = absl::StrCat("patternProperties/", pattern);
    const Dfa matched = StringTexts({{"pattern", pattern}}, absl::StrCat(place, "/", here));
    if (!status_.ok()) return {};
    const Dfa keys = take(left.And(matched, &budget_.steps), here);
    for (const Dfa& other : before) {
      if (status_.ok() && !take(keys.And(other, &budget_.steps), here).empty()) {
        Fail(absl::StrCat(place, "/", here),
             "names that two of the patterns match are not supported");
      }
    }
    if (value != false) add(keys, value_of(value, here));
    before.push_back(keys);
    if (!status_.ok()) return {};
  }
  for (const Dfa& keys : before)
    left = take(left.Without(keys, &budget_.steps), "patternProperties");
  if (additional != false) add(left, value_of(additional, "additionalProperties"));
  return pairs;
}

Expression JsonSchemaConverter::KeyExcept(const std::vector<std::string>& names,
                                          const std::string& place) {
  if (names.empty()) return RuleCall("json-string");
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
  return JsonStringExcept(names);
}

std::optional<Expression> JsonSchemaConverter::Others(const std::string& pair, int count,
                                                      const Counts& counts) {
  const int missing = std::max(0, counts.least - count);
  if (pair.empty()) return missing == 0 ? std::optional(Literal("")) : std::nullopt;
  // They might have the same name, and then would be one property.
  if (missing > 1) return std::nullopt;
  const int most = counts.most < 0 ? -1 : counts.most - count;
  if (missing > 0 && most == 0) return std::nullopt;
  const Expression next = Sequence({PropertySeparator(), RuleCall(pair)});
  if (count > 0) return Repeat(next, missing, most);
  if (most == 0) return Literal("");
  Expression all = Sequence({RuleCall(pair), Repeat(next, 0, most < 0 ? -1 : most - 1)});
  return missing > 0 ? std::move(all) : Optional(std::move(all));
}

std::string JsonSchemaConverter::Members(const std::vector<Member>& members,
                                         const std::string& other, const Counts& counts,
                                         const std::string& place) {
  // Counts beyond this need not be distinguished: whether there is any property, and the bounds.
  const int last = counts.most >= 0 ? counts.most : std::max(1, counts.least);
  const auto reached = [&](size_t i) { return std::min<int64_t>(last, static_cast<int64_t>(i)); };
  // Built from the last member backwards: what follows after so many properties; empty: nothing
  // can.
  std::vector<std::string> rest;
  for (int64_t count = 0; count <= reached(members.size()) && status_.ok(); ++count) {
    const std::optional<Expression> others = Others(other, static_cast<int>(count), counts);
    rest.push_back(others ? NewRule(*others) : "");
  }
  for (size_t i = members.size(); i > 0 && status_.ok(); --i) {
    const Member& member = members[i - 1];
    std::vector<std::string> before;
    for (int64_t count = 0; count <= reached(i - 1) && status_.ok(); ++count) {
      std::vector<Expression> ways;
      const bool room = counts.most < 0 || count < counts.most;
      const std::string& behind = rest[static_cast<size_t>(std::min<int64_t>(count + 1, last))];
      if (room && !behind.empty()) {
        std::vector<Expression> with;
        if (count > 0) with.push_back(PropertySeparator());
        with.push_back(RuleCall(member.pair));
        with.push_back(RuleCall(behind));
        ways.push_back(Sequence(std::move(with)));
      }
      const std::string& without = rest[static_cast<size_t>(count)];
      if (!member.required && !without.empty()) ways.push_back(RuleCall(without));
      before.push_back(ways.empty() ? "" : NewRule(Choice(std::move(ways))));
    }
    rest = std::move(before);
  }
  if (!status_.ok()) return "";
  if (rest[0].empty()) {
    Fail(place,
         "minProperties and maxProperties allow no object; of properties that are not named one "
         "at most counts, as several might have one name");
  }
  return rest[0];
}

}  // namespace espalier
