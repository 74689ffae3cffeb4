// What a request may demand of its answer's form.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/grammar/expression.h"

namespace espalier {

struct StructuredOutput {
  enum Kind { kRegex, kJsonSchema, kJsonObject, kGbnf, kChoice };

  Kind kind = kJsonObject;
  std::string text;                  // of the regular expression, the schema, the grammar
  std::vector<std::string> choices;  // kChoice

  bool operator==(const StructuredOutput& other) const {
    return kind == other.kind && text == other.text && choices == other.choices;
  }
  bool operator<(const StructuredOutput& other) const {
    if (kind != other.kind) return kind < other.kind;
    return text != other.text ? text < other.text : choices < other.choices;
  }
};

// InvalidArgument, naming the form and the place in it.
absl::StatusOr<Grammar> GrammarOf(const StructuredOutput& output);

}  // namespace espalier
