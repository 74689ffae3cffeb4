// The texts that a structured output may be: a context-free grammar with one expression tree per
// rule. regex.h, json_schema.h, gbnf.h and the structural tags translate to it; automaton.h
// compiles it.
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

// Code points, inclusive.
using CodePointRange = std::pair<uint32_t, uint32_t>;
using CodePoints = std::vector<CodePointRange>;

struct Expression {
  enum Kind { kLiteral, kClass, kSequence, kChoice, kRepeat, kRule };

  Kind kind = kLiteral;
  std::string text;               // kLiteral: bytes; kRule: name of the rule
  CodePoints points;              // kClass: one code point of these
  std::vector<Expression> parts;  // kSequence, kChoice; kRepeat: one part
  int least = 0;                  // kRepeat
  int most = -1;                  // kRepeat; -1: unbounded
};

// What is left for building the grammar of one structured output, all its schemas, patterns and
// formats together.
struct GrammarBudget {
  int64_t parts = 1'000'000;   // expressions, of about 150 bytes each
  int64_t steps = 20'000'000;  // of automata and schema merges (dfa.h); a fraction of a second

  // Returns InvalidArgument once the budget is exhausted.
  absl::Status ChargeParts(int64_t count);
};

struct Grammar {
  std::map<std::string, Expression> rules;
  std::string root = "root";
};

Expression Literal(absl::string_view bytes);
Expression OneOf(CodePoints points);  // sorts and merges; drops surrogates
Expression Sequence(std::vector<Expression> parts);
Expression Choice(std::vector<Expression> parts);
Expression Repeat(Expression part, int least, int most = -1);
Expression Optional(Expression part);
Expression RuleCall(absl::string_view name);
// Up to four blanks, tabs and line breaks.
Expression ShortWhitespace();

// The number of nodes of an expression tree.
int64_t CountParts(const Expression& e);

// Moves the rules of another grammar into *grammar with `prefix` before their names, and returns a
// call of its root. With `share_json` the rules of AddJsonRules keep their names.
Expression ImportRules(Grammar other, const std::string& prefix, bool share_json, Grammar* grammar);

CodePoints Complement(CodePoints points);
CodePoints Intersect(const CodePoints& a, const CodePoints& b);

// Appends the UTF-8 encoding. REQUIRES: not a surrogate.
void AppendUtf8(uint32_t point, std::string* out);
// Returns the code point at *at and advances *at. REQUIRES: valid UTF-8 at *at.
uint32_t TakeUtf8(absl::string_view text, size_t* at);

}  // namespace espalier
