#include "serving/grammar/regex.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/tokenizer/utf8_stream.h"

namespace espalier {
namespace {

constexpr int kMaxDepth = 100;
constexpr int kMaxCount = 100'000;

const CodePoints& Digits() {
  static const CodePoints& points = *new CodePoints{{'0', '9'}};
  return points;
}
const CodePoints& WordCharacters() {
  static const CodePoints& points = *new CodePoints{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return points;
}
const CodePoints& Spaces() {
  static const CodePoints& points = *new CodePoints{{'\t', '\r'}, {' ', ' '}};
  return points;
}

class Parser {
 public:
  Parser(absl::string_view pattern, bool search) : text_(pattern), search_(search) {}

  absl::StatusOr<Expression> Parse() {
    Expression all = Alternatives(0);
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

  Expression Alternatives(int depth) {
    std::vector<Expression> parts;
    if (depth > kMaxDepth) Fail(absl::StrCat("groups nest deeper than ", kMaxDepth));
    do {
      parts.push_back(Alternative(depth));
    } while (status_.ok() && Take("|"));
    return Choice(std::move(parts));
  }

  Expression Alternative(int depth) {
    const Expression anything = Repeat(OneOf({{0, kLastCodePoint}}), 0);
    std::vector<Expression> parts;
    if (depth == 0) {
      if (!Take("^") && search_) parts.push_back(anything);
    }
    bool to_the_end = false;
    while (More() && Peek() != '|' && Peek() != ')') {
      if (Peek() == '^') {
        Fail("'^' is accepted at the beginning only");
      } else if (Peek() == '$') {
        ++at_;
        if (depth > 0 || (at_ < text_.size() && Peek() != '|')) {
          Fail("'$' is accepted at the end only");
        }
        to_the_end = true;
        break;
      } else {
        parts.push_back(Quantified(depth));
      }
    }
    if (depth == 0 && search_ && !to_the_end) parts.push_back(anything);
    return Sequence(std::move(parts));
  }

  Expression Quantified(int depth) {
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
        More() &&
        (Peek() == '*' || Peek() == '+' || Peek() == '?' ||
         (Peek() == '{' && text_.substr(at_ + 1, 1) >= "0" && text_.substr(at_ + 1, 1) <= "9"));
    if (again) Fail("a repetition of a repetition needs a group around the inner one");
    return Repeat(std::move(atom), least, most);
  }

  // {n}, {n,} or {n,m}; anything else in braces is text.
  bool Counts(int* least, int* most) {
    const size_t begin = at_++;
    const auto number = [&](int* out) {
      const size_t first = at_;
      int64_t value = 0;
      while (at_ < text_.size() && Peek() >= '0' && Peek() <= '9') {
        value = std::min<int64_t>(value * 10 + (Peek() - '0'), kMaxCount + 1);
        ++at_;
      }
      *out = static_cast<int>(value);
      return at_ > first;
    };
    bool good = number(least);
    if (good && Take(",")) {
      if (!number(most)) *most = -1;
    } else {
      *most = *least;
    }
    if (!good || !Take("}")) {
      at_ = begin;
      return false;
    }
    if (*least > kMaxCount || *most > kMaxCount) {
      Fail(absl::StrCat("repeats more than ", kMaxCount, " times"));
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
        return OneOf(Complement({{'\n', '\n'}, {'\r', '\r'}}));
      case '*':
      case '+':
      case '?':
        Fail("nothing to repeat");
        return {};
      case '\\': {
        CodePoints points;
        Escape(&points, /*in_class=*/false);
        return OneOf(std::move(points));
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

  // One code point or a class of them, after a backslash.
  void Escape(CodePoints* points, bool in_class) {
    ++at_;
    if (at_ >= text_.size()) {
      Fail("a backslash ends the pattern");
      return;
    }
    const char c = Peek();
    ++at_;
    const auto one = [points](uint32_t point) { points->emplace_back(point, point); };
    const auto add = [points](const CodePoints& more) {
      points->insert(points->end(), more.begin(), more.end());
    };
    switch (c) {
      case 'd':
        return add(Digits());
      case 'D':
        return add(Complement(Digits()));
      case 'w':
        return add(WordCharacters());
      case 'W':
        return add(Complement(WordCharacters()));
      case 's':
        return add(Spaces());
      case 'S':
        return add(Complement(Spaces()));
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
      Fail("a hexadecimal code point is wanted, which is no surrogate");
      return 0;
    }
    return value;
  }

  Expression Class() {
    ++at_;
    const bool negated = Take("^");
    CodePoints points;
    bool first = true;
    while (More() && (Peek() != ']' || first)) {
      first = false;
      if (text_.substr(at_, 2) == "[:") Fail("[:classes:] are not supported");
      CodePoints low;
      ClassPoint(&low);
      const bool range = at_ + 1 < text_.size() && Peek() == '-' && text_[at_ + 1] != ']';
      if (!range) {
        points.insert(points.end(), low.begin(), low.end());
        continue;
      }
      ++at_;
      CodePoints high;
      ClassPoint(&high);
      if (!status_.ok()) break;
      if (low.size() != 1 || high.size() != 1 || low[0].first != low[0].second ||
          high[0].first != high[0].second || low[0].first > high[0].first) {
        Fail("a range's ends must be characters, the lower one first");
        break;
      }
      points.emplace_back(low[0].first, high[0].first);
    }
    if (!Take("]")) Fail("a class is not closed");
    return OneOf(negated ? Complement(std::move(points)) : std::move(points));
  }

  void ClassPoint(CodePoints* out) {
    if (Peek() == '\\') {
      Escape(out, /*in_class=*/true);
    } else {
      const uint32_t point = TakeUtf8(text_, &at_);
      out->emplace_back(point, point);
    }
  }

  absl::string_view text_;
  bool search_;
  size_t at_ = 0;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<Expression> ParseRegex(absl::string_view pattern, bool search) {
  if (!IsValidUtf8(pattern)) return absl::InvalidArgumentError("regex: it is not valid UTF-8");
  return Parser(pattern, search).Parse();
}

}  // namespace espalier
