#include "serving/grammar/structural_tag.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json/bounded_json.h"
#include "serving/grammar/dfa.h"
#include "serving/grammar/json_grammar.h"
#include "serving/grammar/json_schema.h"
#include "serving/tokenizer/utf8_stream.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxSections = 1024;
constexpr size_t kMaxTagBytes = 1024;

// What an unquoted string may be; nullopt for values that are never strings.
struct UnquotedString {
  std::vector<std::string> choices;  // empty: any text
};

bool IsAnnotation(const std::string& key) {
  for (const char* one : {"type", "title", "description", "default", "examples", "$defs",
                          "definitions", "deprecated", "$comment"}) {
    if (key == one) return true;
  }
  return false;
}

bool MayBeString(const Json& type) {
  return type == "string" ||
         (type.is_array() && std::find(type.begin(), type.end(), "string") != type.end());
}

// An unquoted string is any text or one of a list. Other constraints are not supported, since a
// reader could not distinguish strings from other values. Returns OK with nullopt if the schema's
// values are never strings.
absl::StatusOr<std::optional<UnquotedString>> UnquotedStringOf(const Json& schema) {
  const auto cannot = [](const std::string& key) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", key, "' is not supported where strings are written without quotes"));
  };
  if (!schema.is_object()) return cannot("true");
  if (schema.contains("enum") || schema.contains("const")) {
    const Json values = schema.contains("const") ? Json::array({schema["const"]}) : schema["enum"];
    UnquotedString out;
    bool others = false;
    for (const Json& value : values) {
      others = others || !value.is_string() || value == "";
      if (value.is_string()) out.choices.push_back(value.get<std::string>());
    }
    if (out.choices.empty()) return std::nullopt;
    if (others) return cannot("enum");
    const bool is_const = schema.contains("const");
    for (const auto& [key, value] : schema.items()) {
      const bool this_one = key == (is_const ? "const" : "enum");
      if (key == "type" ? !MayBeString(value) : !this_one && !IsAnnotation(key)) return cannot(key);
    }
    return out;
  }
  Json alternatives = Json::array({schema});
  std::string either;
  for (const char* key : {"anyOf", "oneOf"}) {
    if (!schema.contains(key) || !schema[key].is_array()) continue;
    alternatives = schema[key];
    either = key;
  }
  bool string = false;
  for (const Json& one : alternatives) {
    if (!one.is_object() || !one.contains("type")) {
      return cannot(one.is_object() && one.contains("$ref") ? "$ref" : "a schema without type");
    }
    string = string || MayBeString(one["type"]);
  }
  if (!string) return std::nullopt;
  if (!either.empty()) {
    for (const auto& [key, value] : schema.items()) {
      if (key != either && (key == "type" || !IsAnnotation(key))) return cannot(key);
    }
  }
  for (const Json& one : alternatives) {
    for (const auto& [key, value] : one.items()) {
      if (!IsAnnotation(key)) return cannot(key);
    }
  }
  return UnquotedString{};
}

void ToPythonConstants(Expression* e) {
  for (const auto& [json, python] :
       {std::pair{"true", "True"}, {"false", "False"}, {"null", "None"}}) {
    if (e->kind == Expression::kLiteral && e->text == json) e->text = python;
  }
  for (Expression& part : e->parts) ToPythonConstants(&part);
}

class StructuralTagBuilder {
 public:
  StructuralTagBuilder(const StructuralTag& text, GrammarBudget* budget)
      : text_(text), budget_(budget) {}

  absl::StatusOr<Grammar> Build() {
    std::vector<Expression> sections;
    for (size_t i = 0; i < text_.sections.size() && status_.ok(); ++i) {
      place_ = absl::StrCat("section ", i);
      sections.push_back(Section(text_.sections[i]));
    }
    if (sections.empty() || sections.size() > kMaxSections) {
      Fail(absl::StrCat("has ", sections.size(), " sections, expected 1 to ", kMaxSections));
    }
    Expression any = Choice(std::move(sections));
    if (text_.layout == StructuralTag::kTagsOnly) {
      any = NewRule(std::move(any));
      const int more = text_.most < 0 ? -1 : text_.most - 1;
      any = Sequence({ShortWhitespace(), any, Repeat(Sequence({ShortWhitespace(), any}), 0, more),
                      ShortWhitespace()});
    } else if (text_.layout != StructuralTag::kSingleSection && status_.ok()) {
      Expression free = FreeTextWithout(text_.triggers, "text");
      any = NewRule(std::move(any));
      if (text_.layout == StructuralTag::kTextThenTags) {
        any = Sequence({std::move(free), Optional(std::move(any))});
      } else {
        any = Sequence({free, Repeat(Sequence({std::move(any), free}), 0, text_.most)});
      }
    }
    if (!status_.ok()) return status_;
    grammar_.rules["root"] = std::move(any);
    return std::move(grammar_);
  }

 private:
  void Fail(absl::string_view what) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        absl::StrCat("structural tag", place_.empty() ? "" : ", ", place_, ": ", what));
  }

  Expression CheckedLiteral(const std::string& text) {
    if (text.size() > kMaxTagBytes || !IsValidUtf8(text)) {
      Fail(absl::StrCat("a tag must be UTF-8 of at most ", kMaxTagBytes, " bytes"));
    }
    return Literal(text);
  }

  // Makes an expression that is used several times a rule.
  Expression NewRule(Expression body) {
    const std::string name = absl::StrCat("formed ", rules_++);
    grammar_.rules[name] = std::move(body);
    return RuleCall(name);
  }

  Expression FreeTextWithout(const std::vector<std::string>& excluded, const std::string& name) {
    for (const std::string& tag : excluded) {
      if (tag.empty()) Fail("a trigger is empty");
      CheckedLiteral(tag);
    }
    if (excluded.empty()) Fail("there are no triggers");
    if (!status_.ok()) return {};
    absl::StatusOr<Expression> out =
        TextExcluding(excluded, absl::StrCat(name, " ", rules_++), &grammar_, budget_);
    if (out.ok()) return *std::move(out);
    Fail(out.status().message());
    return {};
  }

  Expression Section(const TagSection& section) {
    std::vector<Expression> items;
    for (const TagItem& item : section.items) {
      const std::string begin = section.open + item.begin;
      const bool triggered =
          std::any_of(text_.triggers.begin(), text_.triggers.end(),
                      [&](const std::string& t) { return absl::StartsWith(begin, t); });
      const bool free = text_.layout == StructuralTag::kTextAndTags ||
                        text_.layout == StructuralTag::kTextThenTags;
      if (free && !triggered) {
        Fail(absl::StrCat("it begins with '", begin.substr(0, 40), "', which no trigger does"));
      }
      const std::string outer = place_;
      absl::StrAppend(&place_, ", '", begin.substr(0, 100), "'");
      const auto [known, added] = items_.try_emplace(item);
      if (added) {
        known->second = NewRule(
            Sequence({CheckedLiteral(item.begin), ItemContent(item), CheckedLiteral(item.end)}));
      }
      items.push_back(known->second);
      place_ = outer;
      if (!status_.ok()) return {};
    }
    if (items.empty()) Fail("it has no items");
    Expression one = NewRule(Choice(std::move(items)));
    std::vector<Expression> parts = {CheckedLiteral(section.open), one};
    if (section.most != 1) {
      parts.push_back(Repeat(Sequence({CheckedLiteral(section.separator), one}), 0,
                             section.most < 0 ? -1 : section.most - 1));
    }
    parts.push_back(CheckedLiteral(section.close));
    return Sequence(std::move(parts));
  }

  Expression ItemContent(const TagItem& item) {
    switch (item.kind) {
      case TagItem::kValue:
        return Value(item.schema, ValueSyntax::kJson, item.end);
      case TagItem::kFields:
        return Fields(item);
      case TagItem::kKeywords:
        return Keywords(item);
      case TagItem::kAnything:
        return FreeTextWithout({std::string(absl::StripAsciiWhitespace(item.end))}, "anything");
    }
    return {};
  }

  // Builds from the last field backwards: `first` follows if no field precedes, `later` if one
  // does.
  Expression Fields(const TagItem& item) {
    Expression first = Literal(""), later = Literal("");
    for (auto field = item.fields.rbegin(); field != item.fields.rend() && status_.ok(); ++field) {
      const std::string outer = place_;
      absl::StrAppend(&place_, ", '", field->begin, "'");
      const Expression value = NewRule(
          Sequence({CheckedLiteral(field->begin), Value(field->schema, field->syntax, field->end),
                    CheckedLiteral(field->end)}));
      place_ = outer;
      Expression here = Sequence({value, later});
      Expression behind = Sequence({CheckedLiteral(item.separator), value, later});
      if (!field->required) {
        here = Choice({std::move(here), std::move(first)});
        behind = Choice({std::move(behind), std::move(later)});
      }
      first = NewRule(std::move(here));
      later = NewRule(std::move(behind));
    }
    return first;
  }

  Expression Keywords(const TagItem& item) {
    const CodePoints letters = {{'a', 'z'}, {'A', 'Z'}, {'_', '_'}};
    CodePoints more = letters;
    more.emplace_back('0', '9');
    const Expression pair = NewRule(Sequence({OneOf(letters), Repeat(OneOf(more), 0), Literal("="),
                                              Value("true", ValueSyntax::kPython, item.end)}));
    return Optional(Sequence({pair, Repeat(Sequence({CheckedLiteral(item.separator), pair}), 0)}));
  }

  Expression Value(const std::string& schema, ValueSyntax syntax, const std::string& end) {
    if (syntax == ValueSyntax::kUnquoted) {
      const Json parsed = ParseBoundedJson<Json>(schema, kRequestJson).value_or(Json());
      absl::StatusOr<std::optional<UnquotedString>> plain = UnquotedStringOf(parsed);
      if (!plain.ok()) Fail(plain.status().message());
      if (!status_.ok()) return {};
      // Readers look for the tag without the whitespace around it.
      const std::string tag(absl::StripAsciiWhitespace(end));
      if (*plain && (*plain)->choices.empty()) return FreeTextWithout({tag}, "plain");
      if (*plain) {
        std::vector<Expression> choices;
        for (const std::string& choice : (*plain)->choices) {
          // A reader would end the value there.
          if (absl::StrContains(choice, tag)) Fail("a choice contains what ends the value");
          choices.push_back(Literal(choice));
        }
        return Choice(std::move(choices));
      }
    }
    absl::StatusOr<Grammar> value = ParseJsonSchema(schema, budget_);
    if (!value.ok()) Fail(value.status().message());
    if (!status_.ok()) return {};
    // With Python's constants, JSON's building blocks differ and cannot be shared.
    const bool python = syntax == ValueSyntax::kPython;
    if (python) {
      for (auto& [name, rule] : value->rules) ToPythonConstants(&rule);
    }
    return ImportRules(*std::move(value), absl::StrCat("value ", rules_++, " "), !python,
                       &grammar_);
  }

  const StructuralTag& text_;
  GrammarBudget* budget_;
  Grammar grammar_;
  absl::Status status_;
  std::string place_;
  int rules_ = 0;
  std::map<TagItem, Expression> items_;  // formats repeat items in several sections
};

}  // namespace

absl::StatusOr<Grammar> StructuralTagGrammar(const StructuralTag& text, GrammarBudget* budget) {
  return StructuralTagBuilder(text, budget).Build();
}

absl::StatusOr<Expression> TextExcluding(const std::vector<std::string>& excluded,
                                         const std::string& name, Grammar* grammar,
                                         GrammarBudget* budget, int most) {
  const Expression one = OneOf({{0, kLastCodePoint}});
  if (excluded.empty()) return Repeat(one, 0, most);
  const Expression any = Repeat(one, 0);
  std::vector<Expression> literals;
  for (const std::string& tag : excluded) literals.push_back(Literal(tag));
  DfaBudget& steps = budget->steps;
  absl::StatusOr<Dfa> all = Dfa::From(Repeat(one, 0, most), &steps);
  if (!all.ok()) return all.status();
  absl::StatusOr<Dfa> with = Dfa::From(Sequence({any, Choice(std::move(literals)), any}), &steps);
  if (!with.ok()) return with.status();
  absl::StatusOr<Dfa> without = all->Without(*with, &steps);
  if (!without.ok()) return without.status();
  absl::Status status = budget->ChargeParts(kPartsOfState * without->size());
  if (!status.ok()) return status;
  return without->AddRules(
      name, [](const CodePoints& points) { return OneOf(points); }, grammar);
}

}  // namespace espalier
