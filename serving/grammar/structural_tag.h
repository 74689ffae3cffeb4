// Text that has a form in places: calls of tools in an answer, or whatever else stands between
// marks. What xgrammar and vLLM call structural tags.
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
  kPython,  // JSON with True, False and None
  kUnquoted,   // strings without quotes, up to what follows; all else as JSON
};

// One of an item's values.
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
    kKeywords,  // name=value, as Python has it, of any name and value
    kAnything,
  };

  std::string begin;
  Kind kind = kValue;
  std::string schema;               // kValue: JSON schema of the one value
  std::vector<TagField> fields;  // kFields: in this order
  std::string separator;            // between fields, or keywords
  std::string
      end;  // of kAnything, and plain values: they do not contain it, blanks around it apart

  auto operator<=>(const TagItem&) const = default;
};

// `open`, one or more of the items, `close`.
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
    kSingleSection,     // one section is the whole text
    kTagsOnly,    // one or more are, with blanks between and around
    kTextThenTags,  // a section may come last
    kTextAndTags,        // any number of sections anywhere
  };

  Layout layout = kTextAndTags;
  std::vector<TagSection> sections;
  // Where one of these begins, a section does; each section begins with one. Other text holds none.
  // Only where there is other text.
  std::vector<std::string> triggers;
  int most = -1;  // sections; -1: any number

  auto operator<=>(const StructuralTag&) const = default;
};

// InvalidArgument naming the section and what of its schema cannot be kept.
absl::StatusOr<Grammar> StructuralTagGrammar(const StructuralTag& text, GrammarBudget* budget);

// Any text of at most `most` characters (-1: any number) that contains none of these marks, as
// rules whose names begin with `name`. REQUIRES: no mark is empty. InvalidArgument if they are too
// long, or too many characters.
absl::StatusOr<Expression> TextExcluding(const std::vector<std::string>& marks,
                                       const std::string& name, Grammar* grammar,
                                       GrammarBudget* budget, int most = -1);

}  // namespace espalier
