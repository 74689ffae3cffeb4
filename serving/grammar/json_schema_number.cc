// Schemas of integers and numbers.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/grammar/json_schema_converter.h"

namespace espalier {
namespace {

constexpr int64_t kMostDigits = 999'999'999'999'999'999;

}  // namespace

// Reads the bound as an integer, rounded towards the inside of the range.
bool JsonSchemaConverter::IntegerBound(const Json& schema, const char* key,
                                       const std::string& place, bool up, int64_t* out) {
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

Expression JsonSchemaConverter::Integer(const Json& schema, const std::string& place) {
  RejectOtherKeywords(
      schema, place,
      {"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "not"});
  int64_t low = -kMostDigits, high = kMostDigits, bound = 0;
  bool bounded =
      // these need a regular expression of the texts
      schema.contains("multipleOf") || schema.contains("not");
  for (const char* key : {"minimum", "exclusiveMinimum"}) {
    if (IntegerBound(schema, key, place, true, &bound)) low = std::max(low, bound), bounded = true;
  }
  for (const char* key : {"maximum", "exclusiveMaximum"}) {
    if (IntegerBound(schema, key, place, false, &bound)) {
      high = std::min(high, bound), bounded = true;
    }
  }
  if (!bounded) return RuleCall("json-integer");
  if (low > high) {
    Fail(place, "no integer lies between its minimum and its maximum");
    return {};
  }
  if (!schema.contains("not")) return Multiples(schema, IntegersBetween(low, high), place);
  // Integers that are excluded; the ranges lie between them.
  std::set<int64_t> holes;
  for (const Json& value : schema["not"]["enum"]) {
    const double number = value.get<double>();
    if (!(number >= static_cast<double>(low) && number <= static_cast<double>(high))) continue;
    if (value.is_number_integer()) {
      holes.insert(value.get<int64_t>());
    } else if (number == std::floor(number)) {
      holes.insert(static_cast<int64_t>(number));
    }
  }
  std::vector<Expression> parts;
  for (const int64_t hole : holes) {
    if (low < hole) parts.push_back(IntegersBetween(low, hole - 1));
    low = hole + 1;
  }
  if (low <= high) parts.push_back(IntegersBetween(low, high));
  if (parts.empty()) {
    Fail(absl::StrCat(place, "/not"), "no integer is left");
    return {};
  }
  return Multiples(schema, Choice(std::move(parts)), place);
}

std::optional<Bound> JsonSchemaConverter::NumberBound(const Json& schema, bool low,
                                                      const std::string& place) {
  std::optional<Bound> best;
  double best_at = 0;
  for (const bool exclusive : {false, true}) {
    const char* const key = low ? (exclusive ? "exclusiveMinimum" : "minimum")
                                : (exclusive ? "exclusiveMaximum" : "maximum");
    if (!schema.contains(key)) continue;
    const Json& value = schema[key];
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      Fail(absl::StrCat(place, "/", key), "it must be a number");
      return std::nullopt;
    }
    const double at = value.get<double>();
    // Of equal bounds the exclusive one is tighter.
    const bool tighter = !best || (low ? at >= best_at : at <= best_at);
    if (!tighter) continue;
    best = Bound{ParseDecimal(JsonText(value)), exclusive};
    best_at = at;
  }
  return best;
}

Expression JsonSchemaConverter::Number(const Json& schema, const std::string& place) {
  RejectOtherKeywords(
      schema, place,
      {"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"});
  const std::optional<Bound> low = NumberBound(schema, true, place);
  const std::optional<Bound> high = NumberBound(schema, false, place);
  if (!status_.ok()) return {};
  if (!low && !high && !schema.contains("multipleOf")) return RuleCall("json-number");
  int places = kMaxDecimalDigits;
  if (schema.contains("multipleOf") && schema["multipleOf"].is_number()) {
    places = static_cast<int>(ParseDecimal(JsonText(schema["multipleOf"])).fraction.size());
  }
  std::optional<Expression> numbers = DecimalsBetween(low, high, places);
  if (!numbers) {
    Fail(place, absl::StrCat("no number of ", kMaxDecimalDigits,
                             " digits lies between its minimum and its maximum"));
    return {};
  }
  return Multiples(schema, *std::move(numbers), place);
}

Expression JsonSchemaConverter::Multiples(const Json& schema, Expression numbers,
                                          const std::string& place) {
  if (!schema.contains("multipleOf") || !status_.ok()) return numbers;
  const Json& given = schema["multipleOf"];
  const std::string here = absl::StrCat(place, "/multipleOf");
  const Decimal step = given.is_number() ? ParseDecimal(JsonText(given)) : Decimal();
  if (step.zero() || step.negative) {
    Fail(here, "it must be a number greater than 0");
    return {};
  }
  const std::string digits = step.whole + step.fraction;
  if (digits.size() > 9) {
    Fail(here, "it must have at most 9 digits");
    return {};
  }
  absl::StatusOr<Dfa> texts = Dfa::From(numbers, &budget_.steps);
  absl::StatusOr<Dfa> multiples =
      Dfa::Multiples(std::stoll(digits), static_cast<int>(step.fraction.size()), &budget_.steps);
  if (texts.ok() && multiples.ok()) texts = texts->And(*multiples, &budget_.steps);
  if (!texts.ok() || !multiples.ok()) {
    Fail(here, (texts.ok() ? multiples : texts).status().message());
    return {};
  }
  if (texts->empty()) {
    Fail(here, "no multiple of it lies between minimum and maximum");
    return {};
  }
  return Rules(*texts, "number", OneOf);
}

}  // namespace espalier
