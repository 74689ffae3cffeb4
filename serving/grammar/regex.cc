#include "serving/grammar/regex.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/tokenizer/utf8_stream.h"

namespace espalier {
namespace {

constexpr int kMaxRegexDepth = 100;
constexpr int kMaxRegexCount = 100'000;

// Code points by dialect. Digits and word characters are ASCII in ECMAScript and Unicode in Python,
// and the sets of spaces differ. Accepted texts must match in both dialects.
struct Points {
  CodePoints all;  // in the set in both dialects
  CodePoints any;  // in the set in at least one dialect

  void Add(const Points& more) {
    all.insert(all.end(), more.all.begin(), more.all.end());
    any.insert(any.end(), more.any.begin(), more.any.end());
  }
  Points Negated() const { return {Complement(any), Complement(all)}; }
};

Points OnePoint(uint32_t point) { return {{{point, point}}, {{point, point}}}; }

const Points& Digits() {
  // Unicode's Nd. Outside the BMP whole blocks with digits, since Unicode adds more of them.
  static const Points& points = *new Points{
      {{'0', '9'}}, {{'0', '9'},         {0x660, 0x669},     {0x6F0, 0x6F9},     {0x7C0, 0x7C9},
                     {0x966, 0x96F},     {0x9E6, 0x9EF},     {0xA66, 0xA6F},     {0xAE6, 0xAEF},
                     {0xB66, 0xB6F},     {0xBE6, 0xBEF},     {0xC66, 0xC6F},     {0xCE6, 0xCEF},
                     {0xD66, 0xD6F},     {0xDE6, 0xDEF},     {0xE50, 0xE59},     {0xED0, 0xED9},
                     {0xF20, 0xF29},     {0x1040, 0x1049},   {0x1090, 0x1099},   {0x17E0, 0x17E9},
                     {0x1810, 0x1819},   {0x1946, 0x194F},   {0x19D0, 0x19D9},   {0x1A80, 0x1A99},
                     {0x1B50, 0x1B59},   {0x1BB0, 0x1BB9},   {0x1C40, 0x1C59},   {0xA620, 0xA629},
                     {0xA8D0, 0xA8D9},   {0xA900, 0xA909},   {0xA9D0, 0xA9F9},   {0xAA50, 0xAA59},
                     {0xABF0, 0xABF9},   {0xFF10, 0xFF19},   {0x10400, 0x16FFF}, {0x1CC00, 0x1CCFF},
                     {0x1D7C0, 0x1D7FF}, {0x1E000, 0x1EFFF}, {0x1FBF0, 0x1FBFF}}};
  return points;
}

const Points& WordCharacters() {
  // Unicode has too many letters and digits for a class. Treats everything as one except these
  // blocks of punctuation, symbols and marks.
  static const Points& points = *new Points{
      {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
      Complement({{0, '0' - 1},     {'9' + 1, 'A' - 1}, {'Z' + 1, '_' - 1}, {'_' + 1, 'a' - 1},
                  {'z' + 1, 0xA9},  {0xAB, 0xB1},       {0xB4, 0xB4},       {0xB6, 0xB8},
                  {0xBB, 0xBB},     {0xBF, 0xBF},       {0xD7, 0xD7},       {0xF7, 0xF7},
                  {0x300, 0x36F},   {0x2000, 0x206F},   {0x20A0, 0x20FF},   {0x2190, 0x245F},
                  {0x2500, 0x2775}, {0x2794, 0x2BFF},   {0x2E30, 0x3004},   {0x3008, 0x3020},
                  {0xE000, 0xF8FF}, {0xFE00, 0xFE6F},   {0xFF01, 0xFF0F},   {0xFF1A, 0xFF20},
                  {0xFF5B, 0xFF65}, {0xFFE0, 0xFFFF},   {0x1F110, 0x1FBEF}})};
  return points;
}

const Points& Spaces() {
  static const Points& points = *new Points{{{'\t', '\r'}, {' ', ' '}},
                                            {{'\t', '\r'},
                                             {0x1C, ' '},
                                             {0x85, 0x85},
                                             {0xA0, 0xA0},
                                             {0x1680, 0x1680},
                                             {0x2000, 0x200A},
                                             {0x2028, 0x2029},
                                             {0x202F, 0x202F},
                                             {0x205F, 0x205F},
                                             {0x3000, 0x3000},
                                             {0xFEFF, 0xFEFF}}};
  return points;
}

// ".": all but ECMAScript's line terminators, a superset of Python's.
const CodePoints& AnyButLineEnds() {
  static const CodePoints& points =
      *new CodePoints(Complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
  return points;
}

class RegexParser {
 public:
  RegexParser(absl::string_view pattern, bool search, GrammarBudget* budget)
      : text_(pattern), search_(search), budget_(budget) {}

  absl::StatusOr<Expression> Parse() {
    Expression all = Whole();
    if (status_.ok() && at_ < text_.size()) Fail("')' closes nothing");
    if (!status_.ok()) return status_;
    return all;
  }

 private:
  bool More() const { return status_.ok() && at_ < text_.size(); }
  char Peek() const { return text_[at_]; }
  bool Take(absl::string_view what) {
    if (text_.substr(at_, what.size()) != what) return false;
    at_ += what.size();
    return true;
  }

  void Fail(absl::string_view what) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat("regex: at byte ", at_, ": ", what));
    }
  }

  // Alternatives without an anchor share the surrounding text. With surroundings of its own, each
  // would be one more reading of the text.
  Expression Whole() {
    std::map<std::pair<bool, bool>, std::vector<Expression>> by_ends;
    do {
      bool from_start = false, to_end = false;
      Expression one = Alternative(0, &from_start, &to_end);
      by_ends[{from_start || !search_, to_end || !search_}].push_back(std::move(one));
    } while (status_.ok() && Take("|"));
    const Expression anything = Repeat(OneOf({{0, kLastCodePoint}}), 0);
    std::vector<Expression> ways;
    for (auto& [ends, alternatives] : by_ends) {
      std::vector<Expression> parts;
      if (!ends.first) parts.push_back(anything);
      parts.push_back(Choice(std::move(alternatives)));
      if (!ends.second) parts.push_back(anything);
      ways.push_back(Sequence(std::move(parts)));
    }
    return Choice(std::move(ways));
  }

  Expression Alternatives(int depth) {
    std::vector<Expression> parts;
    if (depth > kMaxRegexDepth) Fail(absl::StrCat("groups nest deeper than ", kMaxRegexDepth));
    do {
      bool from_start = false, to_end = false;
      parts.push_back(Alternative(depth, &from_start, &to_end));
    } while (status_.ok() && Take("|"));
    return Choice(std::move(parts));
  }

  Expression Alternative(int depth, bool* from_start, bool* to_end) {
    std::vector<Expression> parts;
    Spend();
    *from_start = depth == 0 && Take("^");
    while (More() && Peek() != '|' && Peek() != ')') {
      if (Peek() == '^') {
        Fail("'^' is accepted at the beginning only");
      } else if (Peek() == '$') {
        ++at_;
        if (depth > 0 || (at_ < text_.size() && Peek() != '|')) {
          Fail("'$' is accepted at the end only");
        }
        *to_end = true;
        break;
      } else {
        parts.push_back(Quantified(depth));
      }
    }
    return Sequence(std::move(parts));
  }

  // Charges one more alternative or atom, of at most two expressions.
  void Spend() {
    const absl::Status status = budget_->ChargeParts(2);
    if (!status.ok()) Fail(status.message());
  }

  Expression Quantified(int depth) {
    Spend();
    Expression atom = Atom(depth);
    if (!More()) return atom;
    int least = 0, most = -1;
    if (Take("*")) {
    } else if (Take("+")) {
      least = 1;
    } else if (Take("?")) {
      most = 1;
    } else if (Peek() == '{' && Counts(&least, &most)) {
    } else {
      return atom;
    }
    if (Take("+")) Fail("possessive quantifiers are not supported");
    Take("?");
    const bool again =
        More() && (Peek() == '*' || Peek() == '+' || Peek() == '?' ||
                   (Peek() == '{' && at_ + 1 < text_.size() &&
                    (text_[at_ + 1] == ',' || (text_[at_ + 1] >= '0' && text_[at_ + 1] <= '9'))));
    if (again) Fail("a repetition of a repetition needs a group around the inner one");
    return Repeat(std::move(atom), least, most);
  }

  // {n}, {n,}, {,m} or {n,m}; other text in braces is literal.
  bool Counts(int* least, int* most) {
    const size_t begin = at_++;
    const auto number = [&](int* out) {
      const size_t first = at_;
      int64_t value = 0;
      while (at_ < text_.size() && Peek() >= '0' && Peek() <= '9') {
        value = std::min<int64_t>(value * 10 + (Peek() - '0'), kMaxRegexCount + 1);
        ++at_;
      }
      *out = static_cast<int>(value);
      return at_ > first;
    };
    bool good = number(least);
    if (Take(",")) {
      const bool bounded = number(most);
      if (!good && !bounded && Take("}")) {
        Fail("{,} is a repetition to some and text to others; write * or \\{,}");
      }
      if (!bounded) *most = -1;
      good = good || bounded;
    } else {
      *most = *least;
    }
    if (!good || !Take("}")) {
      at_ = begin;
      return false;
    }
    if (*least > kMaxRegexCount || *most > kMaxRegexCount) {
      Fail(absl::StrCat("repeats more than ", kMaxRegexCount, " times"));
    } else if (*most >= 0 && *most < *least) {
      Fail("the repetition's bounds are in the wrong order");
    }
    return true;
  }

  Expression Atom(int depth) {
    switch (Peek()) {
      case '(':
        return Group(depth);
      case '[':
        return Class();
      case '.':
        ++at_;
        return OneOf(AnyButLineEnds());
      case '*':
      case '+':
      case '?':
        Fail("nothing to repeat");
        return {};
      case '\\': {
        Points points;
        Escape(&points, /*in_class=*/false);
        return OneOf(std::move(points.all));
      }
      default: {
        const uint32_t point = TakeUtf8(text_, &at_);
        return OneOf({{point, point}});
      }
    }
  }

  Expression Group(int depth) {
    ++at_;
    if (Take("?")) {
      if (Take(":")) {
      } else if (Take("P<") || (text_.substr(at_, 1) == "<" && text_.substr(at_, 2) != "<=" &&
                                text_.substr(at_, 2) != "<!" && Take("<"))) {
        while (More() && Peek() != '>') ++at_;
        if (!Take(">")) Fail("a group's name must end with '>'");
      } else {
        Fail(
            "look-around, flags and other groups beginning with (? are not supported, but for "
            "(?: and (?<name>");
      }
    }
    Expression inner = Alternatives(depth + 1);
    if (!Take(")")) Fail("a group is not closed");
    return inner;
  }

  // A code point or class after a backslash.
  void Escape(Points* points, bool in_class) {
    ++at_;
    if (at_ >= text_.size()) {
      Fail("a backslash ends the pattern");
      return;
    }
    const char c = Peek();
    ++at_;
    const auto one = [points](uint32_t point) { points->Add(OnePoint(point)); };
    switch (c) {
      case 'd':
        return points->Add(Digits());
      case 'D':
        return points->Add(Digits().Negated());
      case 'w':
        return points->Add(WordCharacters());
      case 'W':
        return points->Add(WordCharacters().Negated());
      case 's':
        return points->Add(Spaces());
      case 'S':
        return points->Add(Spaces().Negated());
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        if (at_ < text_.size() && Peek() >= '0' && Peek() <= '9') {
          Fail("\\0 before a digit is an octal number to some and not to others; write \\x00");
        }
        return one(0);
      case 'x':
        return one(Hex(2, 2));
      case 'u':
        if (Take("{")) {
          one(Hex(1, 6));
          if (!Take("}")) Fail("\\u{ is not closed");
          return;
        }
        return one(Hex(4, 4));
      default:
        break;
    }
    if (c == 'b' && in_class) return one('\b');
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9');
    if (letter) {
      at_ -= 2;
      Fail(absl::StrCat("\\", std::string(1, c),
                        " is not supported (back-references, word boundaries and Unicode "
                        "properties are not)"));
      return;
    }
    --at_;
    one(TakeUtf8(text_, &at_));
  }

  uint32_t Hex(int least, int most) {
    uint32_t value = 0;
    int digits = 0;
    for (; digits < most && More(); ++digits, ++at_) {
      const char c = Peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) break;
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    if (digits < least || value > kLastCodePoint || (value >= 0xD800 && value <= 0xDFFF)) {
      Fail("expected a hexadecimal code point that is no surrogate");
      return 0;
    }
    return value;
  }

  Expression Class() {
    ++at_;
    const bool negated = Take("^");
    Points points;
    bool first = true;
    while (More() && (Peek() != ']' || first)) {
      first = false;
      if (text_.substr(at_, 2) == "[:") Fail("[:classes:] are not supported");
      Points low;
      ClassPoint(&low);
      const bool range = at_ + 1 < text_.size() && Peek() == '-' && text_[at_ + 1] != ']';
      if (!range) {
        points.Add(low);
        continue;
      }
      ++at_;
      Points high;
      ClassPoint(&high);
      if (!status_.ok()) break;
      const auto single = [](const Points& end) {
        return end.all.size() == 1 && end.all[0].first == end.all[0].second;
      };
      if (!single(low) || !single(high) || low.all[0].first > high.all[0].first) {
        Fail("a range's ends must be characters, the lower one first");
        break;
      }
      const CodePoints range_points = {{low.all[0].first, high.all[0].first}};
      points.Add({range_points, range_points});
    }
    if (!Take("]")) Fail("a class is not closed");
    return OneOf(negated ? points.Negated().all : std::move(points.all));
  }

  void ClassPoint(Points* out) {
    if (Peek() == '\\') {
      Escape(out, /*in_class=*/true);
    } else {
      out->Add(OnePoint(TakeUtf8(text_, &at_)));
    }
  }

  absl::string_view text_;
  bool search_;
  GrammarBudget* budget_;
  size_t at_ = 0;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<Expression> ParseRegex(absl::string_view pattern, GrammarBudget* budget,
                                      bool search) {
  if (!IsValidUtf8(pattern)) return absl::InvalidArgumentError("regex: it is not valid UTF-8");
  return RegexParser(pattern, search, budget).Parse();
}

}  // namespace espalier
