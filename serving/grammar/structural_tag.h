// Structural tags, as in xgrammar and vLLM: free text with tagged sections, such as tool calls,
// whose contents follow a schema. xgrammar_structural_tag.h parses the JSON formats of xgrammar.
#pragma once

#include <compare>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/grammar/grammar.h"

namespace espalier {

// How a value is written.
enum class ValueSyntax {
  kJson,
  kPython,    // JSON with True, False and None
  kUnquoted,  // strings without quotes, up to `end`; other values as JSON
};

// One value of an item: `begin`, the value, `end`.
struct TagField {
  std::string begin;
  std::string schema;  // JSON schema
  ValueSyntax syntax = ValueSyntax::kJson;
  std::string end;
  bool required = true;

  auto operator<=>(const TagField&) const = default;
};

struct TagItem {
  enum Kind {
    kValue,
    kFields,
    kKeywords,  // Python's name=value, any names and values
    kAnything,
  };

  std::string begin;
  Kind kind = kValue;
  std::string schema;            // kValue: JSON schema of the value
  std::vector<TagField> fields;  // kFields: in this order
  std::string separator;         // between fields or keywords
  std::string end;  // kAnything and unquoted values do not contain it, surrounding whitespace aside

  auto operator<=>(const TagItem&) const = default;
};

// `open`, one or more items, `close`.
struct TagSection {
  std::string open;
  std::vector<TagItem> items;
  std::string separator;  // between items
  int most = 1;           // items; -1: any number
  std::string close;

  auto operator<=>(const TagSection&) const = default;
};

struct StructuralTag {
  enum Layout {
    kSingleSection,  // the text is one section
    kTagsOnly,       // one or more sections with optional whitespace between and around
    kTextThenTags,   // free text, then at most one section
    kTextAndTags,    // free text with any number of sections
  };

  Layout layout = kTextAndTags;
  std::vector<TagSection> sections;
  // A trigger begins a section, and each section begins with a trigger. Free text contains no
  // trigger. Only for layouts with free text.
  std::vector<std::string> triggers;
  int most = -1;  // sections; -1: any number

  auto operator<=>(const StructuralTag&) const = default;
};

// Returns InvalidArgument naming the section and the schema keyword that cannot be enforced.
absl::StatusOr<Grammar> StructuralTagGrammar(const StructuralTag& text, GrammarBudget* budget);

// Any text of at most `most` characters (-1: unbounded) that contains none of `excluded`, as rules
// whose names begin with `name`. REQUIRES: none is empty. Returns InvalidArgument if the excluded
// or the limit are too large.
absl::StatusOr<Expression> TextExcluding(const std::vector<std::string>& excluded,
                                         const std::string& name, Grammar* grammar,
                                         GrammarBudget* budget, int most = -1);

}  // namespace espalier
