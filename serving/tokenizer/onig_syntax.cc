#include "serving/tokenizer/onig_syntax.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "serving/tokenizer/onig_classes.h"
#include "serving/tokenizer/utf8_stream.h"

namespace espalier {
namespace {

constexpr int kMaxDepth = 64;

bool IsInterval(absl::string_view text, size_t* length) {
  size_t i = 1;
  const auto digits = [&] {
    const size_t begin = i;
    while (i < text.size() && absl::ascii_isdigit(text[i])) ++i;
    return i > begin;
  };
  const bool low = digits();
  bool high = false, comma = false;
  if (i < text.size() && text[i] == ',') {
    comma = true;
    ++i;
    high = digits();
  }
  if (i >= text.size() || text[i] != '}' || (!low && !(comma && high))) return false;
  *length = i + 1;
  return true;
}

class Translator {
 public:
  explicit Translator(absl::string_view pattern) : in_(pattern) {}

  absl::StatusOr<std::string> Run() {
    if (!IsValidUtf8(in_)) return absl::InvalidArgumentError("the pattern is no valid UTF-8");
    Alternatives(0);
    if (status_.ok() && at_ < in_.size()) Fail(absl::StatusCode::kInvalidArgument, "unmatched )");
    if (!status_.ok()) return status_;
    return std::move(out_);
  }

 private:
  bool More() const { return status_.ok() && at_ < in_.size(); }
  bool Looking(absl::string_view text) const { return absl::StartsWith(in_.substr(at_), text); }

  void Fail(absl::StatusCode code, absl::string_view what) {
    if (status_.ok()) {
      status_ = absl::Status(
          code, absl::StrCat(what, " at byte ", at_, " of the pattern ", in_.substr(0, 200)));
    }
  }
  void Unknown(absl::string_view what) { Fail(absl::StatusCode::kUnimplemented, what); }

  // Parses up to the end or an unmatched ')'.
  void Alternatives(int depth) {
    if (depth > kMaxDepth) return Fail(absl::StatusCode::kInvalidArgument, "groups too deep");
    int open_options = 0;  // (?i) without a colon applies up to the end of the group, across bars
    while (More() && in_[at_] != ')') {
      if (in_[at_] == '|') {
        out_.push_back(in_[at_++]);
        continue;
      }
      const size_t begin = out_.size();
      if (Atom(depth, &open_options)) Quantifiers(begin);
    }
    out_.append(static_cast<size_t>(open_options), ')');
  }

  // Returns false if a quantifier cannot follow.
  bool Atom(int depth, int* open_options) {
    const char c = in_[at_];
    if (c == '(') return Group(depth, open_options);
    if (c == '[') {
      out_ += Set(depth);
      return true;
    }
    if (c == '\\') return Escape();
    if (c == '{') {
      size_t length = 0;
      if (IsInterval(in_.substr(at_), &length)) {
        Fail(absl::StatusCode::kInvalidArgument, "nothing to repeat");
        return false;
      }
      out_ += "\\{";
      ++at_;
      return true;
    }
    if (c == '*' || c == '+' || c == '?') {
      Fail(absl::StatusCode::kInvalidArgument, "nothing to repeat");
      return false;
    }
    if (c == ']' || c == '}') out_.push_back('\\');
    do out_.push_back(in_[at_++]);
    while (at_ < in_.size() && (in_[at_] & 0xC0) == 0x80);
    return c != '^' && c != '$';
  }

  // Parses the quantifiers of the atom at out_[begin]. In Ruby's syntax an interval cannot be
  // possessive: {2}+ repeats {2}.
  void Quantifiers(size_t begin) {
    while (More()) {
      const char c = in_[at_];
      size_t length = 0;
      if (c == '{' && IsInterval(in_.substr(at_), &length)) {
        std::string interval(in_.substr(at_, length));
        if (interval[1] == ',') interval.insert(1, "0");
        at_ += length;
        const bool fixed = !absl::StrContains(interval, ",");
        out_ += interval;
        if (More() && in_[at_] == '?' && !fixed) {
          out_.push_back('?');
          ++at_;
        } else if (More() && (in_[at_] == '+' || in_[at_] == '?' || in_[at_] == '*')) {
          Wrap(begin);
        }
        if (More() && in_[at_] == '{') Wrap(begin);
        continue;
      }
      if (c != '*' && c != '+' && c != '?') return;
      out_.push_back(c);
      ++at_;
      if (More() && (in_[at_] == '?' || in_[at_] == '+')) out_.push_back(in_[at_++]);
      if (More() && (in_[at_] == '*' || in_[at_] == '+' || in_[at_] == '?' || in_[at_] == '{')) {
        Wrap(begin);
      }
    }
  }

  void Wrap(size_t begin) {
    out_.insert(begin, "(?:");
    out_.push_back(')');
  }

  bool Group(int depth, int* open_options) {
    if (Looking("(?#")) {
      const size_t end = in_.find(')', at_);
      if (end == absl::string_view::npos) {
        Fail(absl::StatusCode::kInvalidArgument, "comment without an end");
        return false;
      }
      at_ = end + 1;
      return false;
    }
    static constexpr std::array<absl::string_view, 6> kSame = {"(?:", "(?=",  "(?!",
                                                               "(?>", "(?<=", "(?<!"};
    for (const absl::string_view opening : kSame) {
      if (Looking(opening)) return Body(opening, depth);
    }
    if (Looking("(?<") || Looking("(?'")) {
      const size_t end = in_.find_first_of(">'", at_ + 3);
      if (end == absl::string_view::npos) {
        Fail(absl::StatusCode::kInvalidArgument, "name without an end");
        return false;
      }
      return Body(in_.substr(at_, end + 1 - at_), depth);
    }
    if (!Looking("(?")) return Body("(", depth);
    // Options: (?i), (?i:...). Ruby's m lets the dot match newlines; elsewhere that is s.
    size_t i = at_ + 2;
    std::string options = "(?";
    for (; i < in_.size() && in_[i] != ')' && in_[i] != ':'; ++i) {
      if (in_[i] == 'i' || in_[i] == '-') {
        options.push_back(in_[i]);
      } else if (in_[i] == 'm') {
        options.push_back('s');
      } else {
        Unknown(absl::StrCat("group (?", in_.substr(i, 1), " is not known here;"));
        return false;
      }
    }
    if (i >= in_.size()) {
      Fail(absl::StatusCode::kInvalidArgument, "group without an end");
      return false;
    }
    options.push_back(':');
    if (in_[i] == ')') {
      out_ += options;
      ++*open_options;
      at_ = i + 1;
      return false;
    }
    const size_t length = i + 1 - at_;
    at_ += length;
    return Rest(options, depth);
  }

  bool Body(absl::string_view opening, int depth) {
    at_ += opening.size();
    return Rest(opening, depth);
  }

  bool Rest(absl::string_view opening, int depth) {
    absl::StrAppend(&out_, opening);
    Alternatives(depth + 1);
    if (!More()) {
      Fail(absl::StatusCode::kInvalidArgument, "group without an end");
      return false;
    }
    out_.push_back(')');
    ++at_;
    return true;
  }

  // \p{...}, \P{...} or \p{^...} at at_, with the letter at in_[at_ + 1]. Returns the set and
  // whether it is negated.
  std::pair<std::string, bool> PropertyAt() {
    bool negated = in_[at_ + 1] == 'P';
    const size_t end = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || end == absl::string_view::npos) {
      Fail(absl::StatusCode::kInvalidArgument, "\\p without {name}");
      return {"", false};
    }
    absl::string_view name = in_.substr(at_ + 3, end - at_ - 3);
    if (absl::ConsumePrefix(&name, "^")) negated = !negated;
    const std::optional<std::string> set = onig::Property(name);
    if (!set.has_value()) Unknown(absl::StrCat("property ", name, " is not known here;"));
    at_ = end + 1;
    return {set.value_or(""), negated};
  }

  // A class escape such as \s at at_. Returns the set and whether it is negated, or nullopt.
  std::optional<std::pair<std::string, bool>> ClassEscape(bool in_set) {
    if (at_ + 1 >= in_.size()) return std::nullopt;
    const char letter = in_[at_ + 1];
    if (letter == 'p' || letter == 'P') return PropertyAt();
    std::string set;
    switch (absl::ascii_tolower(letter)) {
      case 's':
        set = onig::Space();
        break;
      case 'w':
        set = in_set ? onig::Word() : onig::LooseWord();
        break;
      case 'd':
        set = onig::Category("Nd");
        break;
      case 'h':
        set = "0-9A-Fa-f";
        break;
      default:
        return std::nullopt;
    }
    at_ += 2;
    return std::make_pair(set, absl::ascii_isupper(static_cast<unsigned char>(letter)));
  }

  // Translates a character escape at at_, inside or outside of a class.
  std::string CharacterEscape() {
    if (at_ + 1 >= in_.size()) {
      Fail(absl::StatusCode::kInvalidArgument, "\\ at the end");
      return "";
    }
    const char letter = in_[at_ + 1];
    const auto take = [&](size_t n) {
      at_ += n;
      return std::string(in_.substr(at_ - n, n));
    };
    if (letter == 'x' && at_ + 2 < in_.size() && in_[at_ + 2] == '{') {
      const size_t end = in_.find('}', at_);
      if (end != absl::string_view::npos) return take(end + 1 - at_);
    }
    if (letter == 'x' || letter == 'u') {
      const size_t digits = letter == 'x' ? 2 : 4;
      uint32_t code = 0;
      if (at_ + 2 + digits <= in_.size() &&
          absl::SimpleHexAtoi(in_.substr(at_ + 2, digits), &code) &&
          (letter == 'u' || code < 0x80)) {
        at_ += 2 + digits;
        return absl::StrFormat("\\x{%x}", code);
      }
      Unknown("bytes beyond \\x7F and short \\x or \\u are not known here;");
      return "";
    }
    switch (letter) {
      case 't':
      case 'n':
      case 'r':
      case 'f':
      case 'a':
      case 'e':
        return take(2);
      case 'v':  // a class in PCRE2
        at_ += 2;
        return "\\x{b}";
      case '0':
        at_ += 2;
        return "\\x{0}";
      default:
        break;
    }
    if (absl::ascii_isalnum(static_cast<unsigned char>(letter))) {
      Unknown(absl::StrCat("escape \\", in_.substr(at_ + 1, 1), " is not known here;"));
      return "";
    }
    size_t length = 2;
    while (at_ + length < in_.size() && (in_[at_ + length] & 0xC0) == 0x80) ++length;
    if ((letter & 0x80) != 0) {  // PCRE2 accepts a backslash before ASCII only
      at_ += 1;
      return take(length - 1);
    }
    return take(length);
  }

  bool Escape() {
    if (const auto set = ClassEscape(false); set.has_value()) {
      absl::StrAppend(&out_, set->second ? "[^" : "[", set->first, "]");
      return true;
    }
    if (!status_.ok()) return false;
    const char letter = at_ + 1 < in_.size() ? in_[at_ + 1] : '\0';
    if (letter == 'b' || letter == 'B') {
      at_ += 2;
      const std::string word = absl::StrCat("[", onig::LooseWord(), "]");
      out_ += letter == 'b'
                  ? absl::StrCat("(?:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))")
                  : absl::StrCat("(?:(?<=", word, ")(?=", word, ")|(?<!", word, ")(?!", word, "))");
      return true;
    }
    if (absl::StrContains("AzZGRXK", absl::string_view(&letter, 1))) {
      absl::StrAppend(&out_, in_.substr(at_, 2));
      at_ += 2;
      return letter == 'R' || letter == 'X';
    }
    if (letter >= '1' && letter <= '9') {
      absl::StrAppend(&out_, in_.substr(at_, 2));
      at_ += 2;
      return true;
    }
    if (letter == 'k' && at_ + 2 < in_.size() && in_[at_ + 2] == '<') {
      const size_t end = in_.find('>', at_);
      if (end != absl::string_view::npos) {
        absl::StrAppend(&out_, in_.substr(at_, end + 1 - at_));
        at_ = end + 1;
        return true;
      }
    }
    out_ += CharacterEscape();
    return true;
  }

  // Translates a bracket expression into a pattern that matches one character. Nested sets and
  // intersections, which PCRE2's classes lack, become alternatives and look-ahead.
  std::string Set(int depth) {
    if (depth > kMaxDepth) {
      Fail(absl::StatusCode::kInvalidArgument, "sets too deep");
      return "";
    }
    ++at_;  // [
    const bool negated = More() && in_[at_] == '^';
    if (negated) ++at_;
    std::string plain;                // items of one class
    std::vector<std::string> others;  // alternatives to it
    std::string before;               // look-ahead for the operands of &&
    bool first = true;
    for (; More(); first = false) {
      const char c = in_[at_];
      if (c == ']' && !first) break;
      if (c == ']') {
        plain += "\\]";
        ++at_;
        continue;
      }
      if (Looking("[:")) {
        const size_t end = in_.find(":]", at_);
        if (end != absl::string_view::npos) {
          absl::string_view name = in_.substr(at_ + 2, end - at_ - 2);
          const bool turned = absl::ConsumePrefix(&name, "^");
          const std::optional<std::string> set = onig::Property(name);
          if (!set.has_value()) {
            Unknown(absl::StrCat("class [:", name, ":] is not known here;"));
            return "";
          }
          at_ = end + 2;
          if (turned) {
            others.push_back(absl::StrCat("[^", *set, "]"));
          } else {
            plain += *set;
          }
          continue;
        }
      }
      if (c == '[') {
        others.push_back(Set(depth + 1));
        continue;
      }
      if (Looking("&&")) {
        at_ += 2;
        absl::StrAppend(&before, "(?=", Union(plain, others), ")");
        plain.clear();
        others.clear();
        continue;
      }
      if (c == '\\') {
        if (const auto set = ClassEscape(true); set.has_value()) {
          if (set->second) {
            others.push_back(absl::StrCat("[^", set->first, "]"));
          } else {
            plain += set->first;
          }
          continue;
        }
        if (!status_.ok()) return "";
        if (Looking("\\b")) {
          plain += "\\x{8}";
          at_ += 2;
        } else {
          plain += CharacterEscape();
        }
      } else {
        Literal(&plain);
      }
      Range(&plain);
    }
    if (!More()) {
      Fail(absl::StatusCode::kInvalidArgument, "set without an end");
      return "";
    }
    ++at_;  // ]
    if (before.empty() && others.empty()) {
      return absl::StrCat(negated ? "[^" : "[", plain, "]");
    }
    const std::string whole = absl::StrCat(before, Union(plain, others));
    return negated ? absl::StrCat("(?:(?!", whole, ")(?s:.))") : absl::StrCat("(?:", whole, ")");
  }

  // Translates a literal character at at_ into an item of a PCRE2 class.
  void Literal(std::string* out) {
    if (absl::StrContains("[]^-\\&", in_.substr(at_, 1))) out->push_back('\\');
    do out->push_back(in_[at_++]);
    while (at_ < in_.size() && (in_[at_] & 0xC0) == 0x80);
  }

  // Parses the rest of a range whose first character has been written.
  void Range(std::string* out) {
    if (!Looking("-") || at_ + 1 >= in_.size()) return;
    const char next = in_[at_ + 1];
    if (next == ']' || next == '[' || in_.substr(at_ + 1, 2) == "&&") return;
    if (next == '\\' && at_ + 2 < in_.size() &&
        absl::StrContains("swdhpSWDHP", in_.substr(at_ + 2, 1))) {
      return;  // the hyphen is literal
    }
    out->push_back('-');
    ++at_;
    if (next == '\\') {
      *out += CharacterEscape();
    } else {
      Literal(out);
    }
  }

  std::string Union(const std::string& plain, const std::vector<std::string>& others) {
    std::string out = "(?:";
    if (!plain.empty()) absl::StrAppend(&out, "[", plain, "]");
    for (const std::string& other : others) absl::StrAppend(&out, out.size() > 3 ? "|" : "", other);
    if (out.size() == 3) return "(?!)";
    return out + ")";
  }

  absl::string_view in_;
  size_t at_ = 0;
  std::string out_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::string> TranslateOniguruma(absl::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace espalier
