#include "serving/grammar/gbnf.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "serving/tokenizer/utf8_stream.h"

namespace espalier {
namespace {

constexpr int kMaxGbnfDepth = 100;
constexpr int kMaxGbnfCount = 100'000;
constexpr size_t kMaxGbnfRules = 10'000;

class GbnfParser {
 public:
  GbnfParser(absl::string_view text, GrammarBudget* budget) : text_(text), budget_(budget) {}

  absl::StatusOr<Grammar> Parse() {
    Grammar grammar;
    for (Space(true); More(); Space(true)) {
      const std::string name = Name();
      Space(false);
      if (name.empty()) {
        Fail("a rule's name is wanted: letters, digits and -");
      } else if (!Take("::=")) {
        Fail(absl::StrCat("'::=' is wanted after '", name, "'"));
      }
      Space(true);
      Expression body = Alternatives(0);
      if (More() && Peek() != '\n' && Peek() != '\r') Fail("the rule should end here");
      if (!grammar.rules.emplace(name, std::move(body)).second) {
        Fail(absl::StrCat("the rule '", name, "' is given twice"));
      }
      if (grammar.rules.size() > kMaxGbnfRules)
        Fail(absl::StrCat("more than ", kMaxGbnfRules, " rules"));
    }
    if (!status_.ok()) return status_;
    return grammar;
  }

 private:
  bool More() const { return status_.ok() && at_ < text_.size(); }
  char Peek() const { return text_[at_]; }
  bool Take(absl::string_view what) {
    if (!status_.ok() || text_.substr(at_, what.size()) != what) return false;
    at_ += what.size();
    return true;
  }

  void Fail(absl::string_view what) {
    if (!status_.ok()) return;
    const auto line = std::count(text_.begin(), text_.begin() + std::min(at_, text_.size()), '\n');
    status_ = absl::InvalidArgumentError(absl::StrCat("grammar: line ", line + 1, ": ", what));
  }

  // Skips blanks and comments; with `lines` also line breaks.
  void Space(bool lines) {
    while (More()) {
      const char c = Peek();
      if (c == '#') {
        while (More() && Peek() != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string Name() {
    const size_t begin = at_;
    while (More() && (absl::ascii_isalnum(Peek()) || Peek() == '-' || Peek() == '_')) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  Expression Alternatives(int depth) {
    std::vector<Expression> parts;
    if (depth > kMaxGbnfDepth) Fail(absl::StrCat("groups nest deeper than ", kMaxGbnfDepth));
    do {
      Space(true);
      parts.push_back(Alternative(depth));
    } while (Take("|"));
    return Choice(std::move(parts));
  }

  // Inside a group, lines may break anywhere; outside, only before an alternative.
  Expression Alternative(int depth) {
    std::vector<Expression> parts;
    Spend(1);
    for (Space(depth > 0); More() && Begins(Peek()); Space(depth > 0)) {
      Expression atom = Atom(depth);
      Space(depth > 0);
      parts.push_back(Quantified(std::move(atom)));
    }
    return Sequence(std::move(parts));
  }

  static bool Begins(char c) {
    return c == '"' || c == '[' || c == '(' || c == '.' || absl::ascii_isalnum(c) || c == '_';
  }

  Expression Quantified(Expression atom) {
    for (;;) {
      int least = 0, most = -1;
      if (Take("*")) {
      } else if (Take("+")) {
        least = 1;
      } else if (Take("?")) {
        most = 1;
      } else if (Take("{")) {
        Counts(&least, &most);
      } else {
        return atom;
      }
      if (++quantifiers_ > kMaxGbnfCount) Fail("too many repetitions");
      Spend(1);
      atom = Repeat(std::move(atom), least, most);
      if (++run_ > 8) Fail("repetitions of repetitions nest too deep");
    }
  }

  void Counts(int* least, int* most) {
    const auto number = [this](int* out) {
      Space(true);
      const size_t begin = at_;
      int64_t value = 0;
      for (; More() && absl::ascii_isdigit(Peek()); ++at_) {
        value = std::min<int64_t>(value * 10 + (Peek() - '0'), kMaxGbnfCount + 1);
      }
      Space(true);
      if (value > kMaxGbnfCount) Fail(absl::StrCat("repeats more than ", kMaxGbnfCount, " times"));
      *out = static_cast<int>(value);
      return at_ > begin;
    };
    if (!number(least)) Fail("a number is wanted after '{'");
    *most = *least;
    if (Take(",") && !number(most)) *most = -1;
    if (!Take("}")) Fail("'}' is wanted");
    if (*most >= 0 && *most < *least) Fail("the repetition's bounds are in the wrong order");
  }

  void Spend(int64_t parts) {
    const absl::Status status = budget_->ChargeParts(parts);
    if (!status.ok()) Fail(status.message());
  }

  Expression Atom(int depth) {
    run_ = 0;
    Spend(1);
    switch (Peek()) {
      case '"':
        return Quoted();
      case '[':
        return Class();
      case '.':
        ++at_;
        return OneOf({{0, kLastCodePoint}});
      case '(': {
        ++at_;
        Expression inner = Alternatives(depth + 1);
        run_ = 0;
        if (!Take(")")) Fail("a group is not closed");
        return inner;
      }
      default:
        return RuleCall(Name());
    }
  }

  uint32_t Character() {
    if (Peek() != '\\') return TakeUtf8(text_, &at_);
    ++at_;
    if (!More()) {
      Fail("a backslash ends the grammar");
      return 0;
    }
    const char c = Peek();
    ++at_;
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return Hex(2);
      case 'u':
        return Hex(4);
      case 'U':
        return Hex(8);
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
        return static_cast<uint32_t>(c);
      default:
        Fail(absl::StrCat("the escape \\", std::string(1, c), " is not known"));
        return 0;
    }
  }

  uint32_t Hex(int digits) {
    uint64_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      if (!More() || !absl::ascii_isxdigit(Peek())) {
        Fail(absl::StrCat(digits, " hexadecimal digits are wanted"));
        return 0;
      }
      const char c = absl::ascii_tolower(Peek());
      value = value * 16 + (c <= '9' ? c - '0' : c - 'a' + 10);
    }
    if (value > kLastCodePoint || (value >= 0xD800 && value <= 0xDFFF)) {
      Fail("that is no code point");
      return 0;
    }
    return static_cast<uint32_t>(value);
  }

  Expression Quoted() {
    ++at_;
    std::string bytes;
    while (More() && Peek() != '"') AppendUtf8(Character(), &bytes);
    if (!Take("\"")) Fail("a literal is not closed");
    return Literal(bytes);
  }

  Expression Class() {
    ++at_;
    const bool negated = Take("^");
    CodePoints points;
    while (More() && Peek() != ']') {
      const uint32_t low = Character();
      uint32_t high = low;
      if (at_ + 1 < text_.size() && Peek() == '-' && text_[at_ + 1] != ']') {
        ++at_;
        if (More()) high = Character();
      }
      if (high < low) Fail("a range's lower end must come first");
      points.emplace_back(low, high);
    }
    if (!Take("]")) Fail("a class is not closed");
    return OneOf(negated ? Complement(std::move(points)) : std::move(points));
  }

  absl::string_view text_;
  GrammarBudget* budget_;
  size_t at_ = 0;
  int quantifiers_ = 0;
  int run_ = 0;  // consecutive quantifiers on one atom
  absl::Status status_;
};

}  // namespace

absl::StatusOr<Grammar> ParseGbnf(absl::string_view text, GrammarBudget* budget) {
  if (!IsValidUtf8(text)) return absl::InvalidArgumentError("grammar: it is not valid UTF-8");
  return GbnfParser(text, budget).Parse();
}

}  // namespace espalier
