// Schemas of strings.
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/grammar/json_grammar.h"
#include "serving/grammar/json_schema_converter.h"
#include "serving/grammar/json_schema_keywords.h"
#include "serving/grammar/json_schema_merge.h"
#include "serving/grammar/regex.h"

namespace espalier {
namespace {

Expression AnyCharacters(int least, int most) {
  return Repeat(OneOf({{0, kLastCodePoint}}), least, most);
}

}  // namespace

std::optional<Expression> JsonSchemaConverter::Pattern(const Json& schema, const char* key,
                                                       const std::string& place) {
  const std::string here = absl::StrCat(place, "/", key);
  if (!schema[key].is_string()) {
    Fail(here, "it must be a string");
    return std::nullopt;
  }
  std::string pattern = schema[key].get<std::string>();
  const bool search = *key == 'p';
  if (!search) {
    // RelaxJsonSchema has dropped other formats where a schema can stand.
    const auto format = StringFormats().find(pattern);
    if (format == StringFormats().end()) return AnyCharacters(0, -1);
    pattern = format->second;
  }
  absl::StatusOr<Expression> parsed = ParseRegex(pattern, &budget_, search);
  if (parsed.ok()) return *std::move(parsed);
  Fail(here, parsed.status().message());
  return std::nullopt;
}

Dfa JsonSchemaConverter::StringTexts(const Json& schema, const std::string& place) {
  std::vector<Expression> all;  // a text must match each of them
  if (schema.contains("const") || schema.contains("enum")) {
    std::vector<Expression> values;
    for (const Json& value : Enumerated(schema, place)) {
      if (value.is_string()) values.push_back(Literal(value.get<std::string>()));
    }
    // Without strings among the constants there is no possible name.
    all.push_back(values.empty() ? OneOf({}) : Choice(std::move(values)));
  }
  for (const char* key : {"pattern", "format"}) {
    if (!schema.contains(key)) continue;
    if (std::optional<Expression> pattern = Pattern(schema, key, place)) {
      all.push_back(*std::move(pattern));
    }
  }
  const int least = Count(schema, "minLength", 0, place);
  const int most = Count(schema, "maxLength", -1, place);
  all.push_back(AnyCharacters(least, most));
  if (most >= 0 && most < least) Fail(place, "minLength is more than maxLength");
  std::optional<Dfa> texts;
  for (const Expression& expression : all) {
    if (!status_.ok()) break;
    absl::StatusOr<Dfa> next = Dfa::From(expression, &budget_.steps);
    if (next.ok() && texts) next = texts->And(*next, &budget_.steps);
    if (!next.ok()) {
      Fail(place, next.status().message());
      break;
    }
    texts = *std::move(next);
  }
  if (status_.ok() && ExcludesValues(schema)) {
    std::vector<Expression> values;
    for (const Json& value : schema["not"]["enum"]) {
      if (value.is_string()) values.push_back(Literal(value.get<std::string>()));
    }
    absl::StatusOr<Dfa> next = Dfa::From(Choice(std::move(values)), &budget_.steps);
    if (next.ok()) next = texts->Without(*next, &budget_.steps);
    if (!next.ok()) {
      Fail(absl::StrCat(place, "/not"), next.status().message());
      return {};
    }
    texts = *std::move(next);
  }
  if (status_.ok() && texts->empty()) Fail(place, "no text satisfies all of its keywords");
  return status_.ok() ? *std::move(texts) : Dfa();
}

Expression JsonSchemaConverter::String(const Json& schema, const std::string& place) {
  RejectOtherKeywords(schema, place,
                      {"type", "pattern", "format", "minLength", "maxLength", "not"});
  const bool sized = schema.contains("minLength") || schema.contains("maxLength");
  const bool pattern = schema.contains("pattern"), format = schema.contains("format");
  if (static_cast<int>(sized) + pattern + format > 1 || schema.contains("not")) {
    const Dfa texts = StringTexts(schema, place);
    if (!status_.ok()) return {};
    return Quoted(Rules(texts, "text", JsonCharacterOf));
  }
  if (pattern || format) {
    const std::optional<Expression> texts = Pattern(schema, pattern ? "pattern" : "format", place);
    if (!texts) return {};
    absl::StatusOr<Expression> string = JsonStringOf(*texts, &budget_);
    if (string.ok()) return *std::move(string);
    Fail(place, string.status().message());
    return {};
  }
  if (!sized) return RuleCall("json-string");
  const int least = Count(schema, "minLength", 0, place);
  const int most = Count(schema, "maxLength", -1, place);
  if (most >= 0 && most < least) Fail(place, "minLength is more than maxLength");
  return Sequence({Literal("\""), Repeat(RuleCall("json-char"), least, most), Literal("\"")});
}

}  // namespace espalier
