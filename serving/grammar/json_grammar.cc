#include "serving/grammar/json_grammar.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace espalier {
namespace {

// Code points that a JSON string may contain unescaped.
CodePoints UnescapedPoints() {
  return {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, kLastCodePoint}};
}

Expression JsonDigit() { return OneOf({{'0', '9'}}); }
Expression HexDigit() { return OneOf({{'0', '9'}, {'a', 'f'}, {'A', 'F'}}); }

// The escape of a code point that must be escaped.
Expression Escaped(uint32_t point) {
  static const std::map<uint32_t, const char*>& names = *new std::map<uint32_t, const char*>{
      {'"', "\\\""}, {'\\', "\\\\"}, {'\b', "\\b"}, {'\f', "\\f"},
      {'\n', "\\n"}, {'\r', "\\r"},  {'\t', "\\t"}};
  const auto it = names.find(point);
  if (it != names.end()) return Literal(it->second);
  const char* const hex = "0123456789abcdef";
  return Literal(
      absl::StrCat("\\u00", std::string(1, hex[point >> 4]), std::string(1, hex[point & 15])));
}

CodePoints EscapedPoints(const CodePoints& points) {
  return Intersect(points, {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
}

// The number of expressions of JsonCharactersOf.
int64_t JsonParts(const Expression& e) {
  int64_t count = 1;
  if (e.kind == Expression::kLiteral) count += static_cast<int64_t>(e.text.size());
  if (e.kind == Expression::kClass) {
    for (const auto& [low, high] : EscapedPoints(e.points)) count += high - low + 1;
  }
  for (const Expression& part : e.parts) count += JsonParts(part);
  return count;
}

Expression JsonCharactersOf(const Expression& e) {
  switch (e.kind) {
    case Expression::kLiteral: {
      std::vector<Expression> parts;
      for (size_t at = 0; at < e.text.size();) {
        const uint32_t point = TakeUtf8(e.text, &at);
        parts.push_back(JsonCharacterOf({{point, point}}));
      }
      return Sequence(std::move(parts));
    }
    case Expression::kClass:
      return JsonCharacterOf(e.points);
    case Expression::kRule:
      return e;
    default: {
      Expression out{.kind = e.kind, .least = e.least, .most = e.most};
      for (const Expression& part : e.parts) out.parts.push_back(JsonCharactersOf(part));
      return out;
    }
  }
}

// `names` share their first `at` characters. Returns the unescaped texts that continue this prefix
// and are none of the names. REQUIRES: sorted, without duplicates.
Expression StringsExcept(absl::Span<const std::u32string> names, size_t at) {
  std::vector<Expression> parts;
  if (names[0].size() == at) {
    names.remove_prefix(1);
  } else {
    parts.push_back(Literal(""));
  }
  CodePoints taken;
  while (!names.empty()) {
    const char32_t point = names[0][at];
    size_t same = 1;
    while (same < names.size() && names[same][at] == point) ++same;
    taken.emplace_back(point, point);
    std::vector<Expression> on;
    on.push_back(OneOf({{point, point}}));
    on.push_back(StringsExcept(names.first(same), at + 1));
    parts.push_back(Sequence(std::move(on)));
    names.remove_prefix(same);
  }
  parts.push_back(Sequence({OneOf(Intersect(Complement(std::move(taken)), UnescapedPoints())),
                            Repeat(OneOf(UnescapedPoints()), 0)}));
  return Choice(std::move(parts));
}

}  // namespace

Expression WithSpaces(std::vector<Expression> parts) {
  std::vector<Expression> out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out.push_back(RuleCall("json-space"));
    out.push_back(std::move(parts[i]));
  }
  return Sequence(std::move(out));
}

void AddJsonRules(Grammar* grammar) {
  auto& rules = grammar->rules;
  const auto call = [](const char* name) { return RuleCall(name); };
  // Bounded, so that a model cannot fill its answer with white space.
  rules["json-space"] =
      Optional(Choice({Literal(" "), Sequence({Literal("\n"), Repeat(Literal(" "), 0, 20)})}));
  rules["json-char"] = Choice(
      {OneOf(UnescapedPoints()),
       Sequence({Literal("\\"), OneOf({{'"', '"'},
                                       {'\\', '\\'},
                                       {'/', '/'},
                                       {'b', 'b'},
                                       {'f', 'f'},
                                       {'n', 'n'},
                                       {'r', 'r'},
                                       {'t', 't'}})}),
       // No surrogates: characters outside the BMP are written unescaped.
       Sequence(
           {Literal("\\u"),
            Choice({Sequence({OneOf({{'0', '9'}, {'a', 'c'}, {'e', 'f'}, {'A', 'C'}, {'E', 'F'}}),
                              Repeat(HexDigit(), 3, 3)}),
                    Sequence({OneOf({{'d', 'd'}, {'D', 'D'}}), OneOf({{'0', '7'}}),
                              Repeat(HexDigit(), 2, 2)})})})});
  rules["json-string"] = Sequence({Literal("\""), Repeat(call("json-char"), 0), Literal("\"")});
  rules["json-integer"] = Sequence(
      {Optional(Literal("-")),
       Choice({Literal("0"), Sequence({OneOf({{'1', '9'}}), Repeat(JsonDigit(), 0, 17)})})});
  rules["json-number"] = Sequence({call("json-integer"),
                                   Optional(Sequence({Literal("."), Repeat(JsonDigit(), 1, 18)})),
                                   Optional(Sequence({OneOf({{'e', 'e'}, {'E', 'E'}}),
                                                      Optional(OneOf({{'+', '+'}, {'-', '-'}})),
                                                      // Stay within the range of a double.
                                                      Repeat(JsonDigit(), 1, 2)}))});
  const auto list = [&](Expression element) {
    return Optional(Sequence(
        {element, call("json-space"),
         Repeat(Sequence({Literal(","), call("json-space"), element, call("json-space")}), 0)}));
  };
  rules["json-array"] =
      Sequence({Literal("["), call("json-space"), list(call("json-value")), Literal("]")});
  rules["json-member"] = WithSpaces({call("json-string"), Literal(":"), call("json-value")});
  rules["json-object"] =
      Sequence({Literal("{"), call("json-space"), list(call("json-member")), Literal("}")});
  rules["json-value"] =
      Choice({call("json-object"), call("json-array"), call("json-string"), call("json-number"),
              Literal("true"), Literal("false"), Literal("null")});
}

Expression JsonCharacterOf(const CodePoints& points) {
  std::vector<Expression> parts;
  const CodePoints plain = Intersect(points, UnescapedPoints());
  if (!plain.empty()) parts.push_back(OneOf(plain));
  for (const auto& [low, high] : EscapedPoints(points)) {
    for (uint32_t point = low; point <= high; ++point) parts.push_back(Escaped(point));
  }
  if (parts.empty()) return OneOf({});
  return Choice(std::move(parts));
}

absl::StatusOr<Expression> JsonStringOf(const Expression& value, GrammarBudget* budget) {
  if (absl::Status status = budget->ChargeParts(JsonParts(value)); !status.ok()) return status;
  return Quoted(JsonCharactersOf(value));
}

Expression Quoted(Expression inside) {
  std::vector<Expression> parts;
  parts.push_back(Literal("\""));
  parts.push_back(std::move(inside));
  parts.push_back(Literal("\""));
  return Sequence(std::move(parts));
}

Expression JsonStringExcept(const std::vector<std::string>& names) {
  std::vector<std::u32string> plain;
  for (const std::string& name : names) {
    std::u32string all;
    bool escaped = false;
    for (size_t at = 0; at < name.size();) {
      all.push_back(TakeUtf8(name, &at));
      escaped = escaped || Intersect({{all.back(), all.back()}}, UnescapedPoints()).empty();
    }
    // Names that need an escape never equal an unescaped string.
    if (!escaped) plain.push_back(std::move(all));
  }
  std::sort(plain.begin(), plain.end());
  plain.erase(std::unique(plain.begin(), plain.end()), plain.end());
  return Quoted(plain.empty() ? Repeat(OneOf(UnescapedPoints()), 0) : StringsExcept(plain, 0));
}

}  // namespace espalier
