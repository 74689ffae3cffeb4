// Schemas of strings.
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "serving/grammar/json_grammar.h"
#include "serving/grammar/json_schema_converter.h"
#include "serving/grammar/json_schema_merge.h"
#include "serving/grammar/regex.h"

namespace espalier {
namespace {

// JSON Schema Validation, section 7.3. These regular expressions accept a subset of each format.
const std::map<std::string, std::string>& Formats() {
  static const auto& formats = *new std::map<std::string, std::string>{
      {"date", "[1-9][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"},
      {"time",
       "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):"
       "[0-5][0-9])"},
      {"date-time",
       "[1-9][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:"
       "[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"},
      {"duration",
       "P([0-9]{1,4}W|([0-9]{1,4}Y)([0-9]{1,4}M([0-9]{1,4}D)?)?|[0-9]{1,4}M([0-9]{1,4}D)?|"
       "[0-9]{1,4}D|([0-9]{1,4}D)?T([0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?|"
       "[0-9]{1,4}M([0-9]{1,4}S)?|[0-9]{1,4}S))"},
      {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
      {"ipv4",
       "((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|"
       "1[0-9][0-9]|[1-9]?[0-9])"},
      {"ipv6",
       "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|([0-9a-f]{1,4}:){1,3}(:[0-9a-f]{1,4}){1,3}|"
       "::([0-9a-f]{1,4}(:[0-9a-f]{1,4}){0,5})?"},
      {"email",
       "[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9]+(-[A-Za-z0-9]+)*"
       "(\\.[A-Za-z0-9]+(-[A-Za-z0-9]+)*)+"},
      {"hostname",
       "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
       "(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?){0,4}"},
      {"uri",
       "[a-z][a-z0-9+.-]{0,15}://[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
       "(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?){0,4}(:[1-9][0-9]{0,3})?"
       "(/([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2})*)*"
       "(\\?([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-F]{2})*)?"
       "(#([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-F]{2})*)?"}};
  return formats;
}

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
    const auto format = Formats().find(pattern);
    if (format == Formats().end()) {
      std::vector<std::string> known;
      for (const auto& [name, regex] : Formats()) known.push_back(name);
      Fail(here, absl::StrCat("this format is not supported; supported are ",
                              absl::StrJoin(known, ", ")));
      return std::nullopt;
    }
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
