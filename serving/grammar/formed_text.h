// Text that has a form in places: calls of tools in an answer, or whatever else stands between
// marks. What xgrammar and vLLM call structural tags.
#pragma once

#include <compare>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/grammar/expression.h"

namespace espalier {

// How a value is written.
enum class Spelling {
  kJson,
  kPython,  // JSON with True, False and None
  kPlain,   // strings without quotes, up to what follows; all else as JSON
};

// One of an item's values.
struct FormedField {
  std::string begin;
  std::string schema;  // JSON schema
  Spelling spelling = Spelling::kJson;
  std::string end;
  bool required = true;

  auto operator<=>(const FormedField&) const = default;
};

struct FormedItem {
  enum Kind {
    kValue,
    kFields,
    kKeywords,  // name=value, as Python has it, of any name and value
    kAnything,
  };

  std::string begin;
  Kind kind = kValue;
  std::string schema;               // kValue: JSON schema of the one value
  std::vector<FormedField> fields;  // kFields: in this order
  std::string separator;            // between fields, or keywords
  std::string
      end;  // of kAnything, and plain values: they do not contain it, blanks around it apart

  auto operator<=>(const FormedItem&) const = default;
};

// `open`, one or more of the items, `close`.
struct FormedSection {
  std::string open;
  std::vector<FormedItem> items;
  std::string separator;  // between items
  int most = 1;           // items; -1: any number
  std::string close;

  auto operator<=>(const FormedSection&) const = default;
};

struct FormedText {
  enum Around {
    kNothing,     // one section is the whole text
    kSections,    // one or more are, with blanks between and around
    kTextBefore,  // a section may come last
    kText,        // any number of sections anywhere
  };

  Around around = kText;
  std::vector<FormedSection> sections;
  // Where one of these begins, a section does; each section begins with one. Other text holds none.
  // Only where there is other text.
  std::vector<std::string> triggers;
  int most = -1;  // sections; -1: any number

  auto operator<=>(const FormedText&) const = default;
};

// InvalidArgument naming the section and what of its schema cannot be kept.
absl::StatusOr<Grammar> GrammarOfFormedText(const FormedText& text, GrammarBudget* budget);

// Any text of at most `most` characters (-1: any number) that contains none of these marks, as
// rules whose names begin with `name`. REQUIRES: no mark is empty. InvalidArgument if they are too
// long, or too many characters.
absl::StatusOr<Expression> TextWithout(const std::vector<std::string>& marks,
                                       const std::string& name, Grammar* grammar,
                                       GrammarBudget* budget, int most = -1);

}  // namespace espalier
