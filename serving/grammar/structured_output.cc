#include "serving/grammar/structured_output.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/grammar/gbnf.h"
#include "serving/grammar/json_schema.h"
#include "serving/grammar/regex.h"
#include "serving/grammar/xgrammar_structural_tag.h"
#include "serving/tokenizer/utf8_stream.h"

namespace espalier {
namespace {

constexpr size_t kMaxTextBytes = 1 << 20;
constexpr size_t kMaxChoices = 10'000;

absl::StatusOr<Grammar> GrammarOfChoices(const std::vector<std::string>& choices) {
  if (choices.empty() || choices.size() > kMaxChoices) {
    return absl::InvalidArgumentError(
        absl::StrCat("choice: it has ", choices.size(), " texts, expected 1 to ", kMaxChoices));
  }
  std::vector<Expression> parts;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].empty() || !IsValidUtf8(choices[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("choice[", i, "]: it must be a text of at least one character"));
    }
    parts.push_back(Literal(choices[i]));
  }
  Grammar grammar;
  grammar.rules["root"] = Choice(std::move(parts));
  return grammar;
}

absl::StatusOr<Grammar> GrammarOfForm(const StructuredOutput& output, GrammarBudget* budget) {
  if (output.text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("structured output: its text has ",
                                                   output.text.size(), " bytes, expected at most ",
                                                   kMaxTextBytes));
  }
  switch (output.kind) {
    case StructuredOutput::kRegex: {
      absl::StatusOr<Expression> expression = ParseRegex(output.text, budget);
      if (!expression.ok()) return expression.status();
      Grammar grammar;
      grammar.rules["root"] = *std::move(expression);
      return grammar;
    }
    case StructuredOutput::kJsonSchema:
      return ParseJsonSchema(output.text, budget);
    case StructuredOutput::kJsonObject:
      return JsonObjectGrammar();
    case StructuredOutput::kGbnf:
      return ParseGbnf(output.text, budget);
    case StructuredOutput::kChoice:
      return GrammarOfChoices(output.choices);
    case StructuredOutput::kStructuralTag:
      return StructuralTagGrammar(output.structural_tag, budget);
    case StructuredOutput::kXgrammarStructuralTag:
      return ParseXgrammarStructuralTag(output.text, budget);
  }
  return absl::InternalError("structured output of an unknown kind");
}

// Puts the reasoning before the grammar's root.
absl::Status Prepend(const ReasoningPrefix& reasoning, Grammar* grammar, GrammarBudget* budget) {
  // Only rules of structural tags have blanks in their names, and those begin differently.
  absl::StatusOr<Expression> inside =
      TextExcluding({reasoning.close}, "reasoning before", grammar, budget);
  if (!inside.ok()) return inside.status();
  const Expression blanks = ShortWhitespace();
  std::vector<Expression> before;
  if (!reasoning.in_prompt) {
    before.push_back(blanks);
    before.push_back(Literal(reasoning.open));
  }
  before.push_back(*std::move(inside));
  before.push_back(Literal(reasoning.close));
  before.push_back(blanks);
  Expression whole = Sequence(std::move(before));
  if (!reasoning.in_prompt) whole = Optional(std::move(whole));
  grammar->rules["after reasoning"] = Sequence({std::move(whole), RuleCall(grammar->root)});
  grammar->root = "after reasoning";
  return absl::OkStatus();
}

}  // namespace

std::strong_ordering StructuredOutput::operator<=>(const StructuredOutput& other) const {
  const auto own = [](const StructuredOutput& o) {
    return std::tie(o.kind, o.text, o.choices, o.structural_tag, o.reasoning);
  };
  const std::strong_ordering order = own(*this) <=> own(other);
  if (order != 0) return order;
  return std::lexicographical_compare_three_way(alternatives.begin(), alternatives.end(),
                                                other.alternatives.begin(),
                                                other.alternatives.end());
}

absl::StatusOr<Grammar> GrammarOf(const StructuredOutput& output) {
  GrammarBudget budget;
  absl::StatusOr<Grammar> grammar = GrammarOfForm(output, &budget);
  if (!grammar.ok()) return grammar;
  if (!output.alternatives.empty()) {
    std::vector<Expression> forms = {RuleCall(grammar->root)};
    for (const StructuredOutput& form : output.alternatives) {
      absl::StatusOr<Grammar> other = GrammarOfForm(form, &budget);
      if (!other.ok()) return other;
      // All rules get a prefix: a user's grammar may define json-string differently.
      forms.push_back(ImportRules(*std::move(other), absl::StrCat("otherwise ", forms.size(), " "),
                                  /*share_json=*/false, &*grammar));
    }
    grammar->rules["one of the forms"] = Choice(std::move(forms));
    grammar->root = "one of the forms";
  }
  if (output.reasoning.close.empty()) return grammar;
  absl::Status status = Prepend(output.reasoning, &*grammar, &budget);
  if (!status.ok()) return status;
  return grammar;
}

}  // namespace espalier
