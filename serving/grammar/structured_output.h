// What a request may demand of its answer's form.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/grammar/expression.h"

namespace espalier {

// Thoughts before the form begins: any text up to `close`, without which there are none.
struct ThoughtsBefore {
  std::string open;    // an answer that begins otherwise has no thoughts
  std::string close;   // empty: the form begins at once
  bool begun = false;  // the prompt has opened them

  bool operator==(const ThoughtsBefore& other) const {
    return open == other.open && close == other.close && begun == other.begun;
  }
  bool operator<(const ThoughtsBefore& other) const {
    return std::tie(open, close, begun) < std::tie(other.open, other.close, other.begun);
  }
};

struct StructuredOutput {
  enum Kind { kRegex, kJsonSchema, kJsonObject, kGbnf, kChoice };

  Kind kind = kJsonObject;
  std::string text;                  // of the regular expression, the schema, the grammar
  std::vector<std::string> choices;  // kChoice
  ThoughtsBefore thoughts;

  bool operator==(const StructuredOutput& other) const {
    return kind == other.kind && text == other.text && choices == other.choices &&
           thoughts == other.thoughts;
  }
  bool operator<(const StructuredOutput& other) const {
    return std::tie(kind, text, choices, thoughts) <
           std::tie(other.kind, other.text, other.choices, other.thoughts);
  }
};

// InvalidArgument, naming the form and the place in it.
absl::StatusOr<Grammar> GrammarOf(const StructuredOutput& output);

}  // namespace espalier
