// What texts a structured output may be: a context-free grammar as a tree of expressions, one per
// rule. Regular expressions, JSON schemas and GBNF are translated to it (regex.h, json_schema.h,
// gbnf.h), and automaton.h makes it ready to run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace espalier {

inline constexpr uint32_t kLastCodePoint = 0x10FFFF;

// Code points, both ends included.
using CodePointRange = std::pair<uint32_t, uint32_t>;
using CodePoints = std::vector<CodePointRange>;

struct Expression {
  enum Kind { kLiteral, kClass, kSequence, kChoice, kRepeat, kRule };

  Kind kind = kLiteral;
  std::string text;               // kLiteral: bytes; kRule: the rule's name
  CodePoints points;              // kClass: one code point of these
  std::vector<Expression> parts;  // kSequence, kChoice; kRepeat: one
  int least = 0;                  // kRepeat
  int most = -1;                  // kRepeat; -1: any number
};

// What making the grammar of one structured output may still cost, however many schemas, patterns
// and formats it is made of.
struct GrammarBudget {
  int64_t parts = 1'000'000;   // expressions, of some 150 bytes
  int64_t steps = 20'000'000;  // of automata and mergers (dfa.h), for a part of a second

  // InvalidArgument once there are too many.
  absl::Status ChargeParts(int64_t count);
};

struct Grammar {
  std::map<std::string, Expression> rules;
  std::string root = "root";
};

Expression Literal(absl::string_view bytes);
Expression OneOf(CodePoints points);  // sorted and merged here; surrogates are left out
Expression Sequence(std::vector<Expression> parts);
Expression Choice(std::vector<Expression> parts);
Expression Repeat(Expression part, int least, int most = -1);
Expression Optional(Expression part);
Expression RuleCall(absl::string_view name);
// Up to four blanks, tabs and ends of lines.
Expression ShortWhitespace();

// How many expressions one is made of.
int64_t CountParts(const Expression& e);

// Adds the rules of another grammar under names that begin with `prefix`, and returns a call of its
// root. `share_json`: but for the rules of JSON's own parts, which are everybody's.
Expression ImportRules(Grammar other, const std::string& prefix, bool share_json, Grammar* grammar);

CodePoints Complement(CodePoints points);
CodePoints Intersect(const CodePoints& a, const CodePoints& b);

// Appends the UTF-8 form. REQUIRES: a code point that is no surrogate.
void AppendUtf8(uint32_t point, std::string* out);
// The code point that begins at `*at`, which moves behind it. REQUIRES: valid UTF-8 there.
uint32_t TakeUtf8(absl::string_view text, size_t* at);

}  // namespace espalier
