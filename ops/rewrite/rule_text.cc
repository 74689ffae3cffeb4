#include "ops/rewrite/rule_text.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace espalier {
namespace {

// Limits on what a short text may expand to.
constexpr size_t kMaxVariants = 1000;

struct Alternative {
  std::string label;
  std::vector<RuleLine> lines;
};

// A line, or alternatives of which one is chosen.
struct Item {
  RuleLine line;
  std::string block;  // empty: a line
  std::vector<Alternative> alternatives;
};

struct Source {
  std::string name;
  int number = 0;
  std::vector<Item> items;
  // Block names in order of appearance, with the labels of their first block.
  std::vector<std::pair<std::string, std::vector<std::string>>> blocks;
};

class Splitter {
 public:
  absl::StatusOr<std::vector<RuleText>> Run(const std::string& text) {
    for (const auto& line : absl::StrSplit(text, '\n')) {
      ++number_;
      const std::string_view view(line.data(), line.size());
      const std::string kept(view.substr(0, view.find('#')));
      const std::vector<std::string> words = SplitWords(kept);
      if (words.empty()) continue;
      if (absl::Status status = AddLine(kept, words); !status.ok()) return status;
    }
    if (absl::Status status = Finish(); !status.ok()) return status;
    return std::move(rules_);
  }

 private:
  absl::Status Error(const std::string& what) const {
    return RuleError(number_, source_.name, what);
  }

  absl::Status AddLine(const std::string& text, const std::vector<std::string>& words) {
    if (words[0] == "rule") {
      if (absl::Status status = Finish(); !status.ok()) return status;
      if (words.size() != 2 || !IsName(words[1])) return Error("expected 'rule' and one name");
      source_ = {.name = words[1], .number = number_};
      replacement_ = false;
      return absl::OkStatus();
    }
    if (source_.name.empty()) return Error("expected 'rule NAME' before anything else");
    if (words[0] == "either") return Begin(words);
    if (words[0] == "or") {
      if (!open_ || words.size() != 2) return Error("expected 'or LABEL' inside of 'either'");
      return AddAlternative(words[1]);
    }
    if (words[0] == "end") {
      if (!open_ || words.size() != 1) return Error("expected 'end' alone, after 'either'");
      open_ = false;
      return absl::OkStatus();
    }
    if (words.size() == 2 && words[0] == "=" && words[1] == ">") {
      if (open_ || replacement_) return Error("expected one '=>', outside of 'either'");
      replacement_ = true;
      return absl::OkStatus();
    }
    RuleLine line = {number_, replacement_, text};
    if (open_) {
      source_.items.back().alternatives.back().lines.push_back(std::move(line));
    } else {
      source_.items.push_back({.line = std::move(line)});
    }
    return absl::OkStatus();
  }

  absl::Status Begin(const std::vector<std::string>& words) {
    if (open_ || words.size() != 3 || !IsName(words[1])) {
      return Error("expected 'either NAME LABEL', not inside of another one");
    }
    open_ = true;
    source_.items.push_back({.block = words[1]});
    known_ = std::find_if(source_.blocks.begin(), source_.blocks.end(),
                          [&](const auto& block) { return block.first == words[1]; }) -
             source_.blocks.begin();
    first_ = known_ == source_.blocks.size();
    if (first_) source_.blocks.push_back({words[1], {}});
    return AddAlternative(words[2]);
  }

  absl::Status AddAlternative(const std::string& label) {
    std::vector<std::string>& labels = source_.blocks[known_].second;
    const bool found = std::find(labels.begin(), labels.end(), label) != labels.end();
    if (first_ == found) {
      return Error(absl::StrCat("block '", source_.blocks[known_].first, "' ",
                                found ? "has an alternative '" : "began without an alternative '",
                                label, found ? "' already" : "'"));
    }
    if (first_) labels.push_back(label);
    source_.items.back().alternatives.push_back({.label = label});
    return absl::OkStatus();
  }

  absl::Status Finish() {
    if (source_.name.empty()) return absl::OkStatus();
    if (open_) return Error("expected 'end' of 'either'");
    if (!replacement_) return Error("expected '=>' and a replacement");
    size_t variants = 1;
    for (const auto& [name, labels] : source_.blocks) variants *= labels.size();
    if (variants > kMaxVariants) {
      return Error(
          absl::StrCat("expected at most ", kMaxVariants, " combinations of alternatives"));
    }
    for (size_t variant = 0; variant < variants; ++variant) rules_.push_back(Variant(variant));
    source_ = {};
    return absl::OkStatus();
  }

  RuleText Variant(size_t variant) const {
    std::map<std::string, std::string> chosen;
    std::string labels;
    for (const auto& [name, choices] : source_.blocks) {
      chosen[name] = choices[variant % choices.size()];
      variant /= choices.size();
      absl::StrAppend(&labels, labels.empty() ? "" : ", ", chosen[name]);
    }
    RuleText rule{labels.empty() ? source_.name : absl::StrCat(source_.name, "(", labels, ")"),
                  source_.number,
                  {}};
    for (const Item& item : source_.items) {
      if (item.block.empty()) rule.lines.push_back(item.line);
      for (const Alternative& alternative : item.alternatives) {
        if (alternative.label != chosen[item.block]) continue;
        rule.lines.insert(rule.lines.end(), alternative.lines.begin(), alternative.lines.end());
      }
    }
    return rule;
  }

  std::vector<RuleText> rules_;
  Source source_;
  int number_ = 0;
  bool replacement_ = false;
  bool open_ = false;   // inside of "either"
  size_t known_ = 0;    // which of source_.blocks
  bool first_ = false;  // whether that is the first block of its name
};

bool StartsName(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)); }

}  // namespace

absl::StatusOr<std::vector<RuleText>> SplitRules(const std::string& text) {
  return Splitter().Run(text);
}

std::vector<std::string> SplitWords(const std::string& line) {
  std::vector<std::string> words;
  const size_t size = line.size();
  const auto at = [&](size_t i) { return i < size ? line[i] : '\0'; };
  for (size_t i = 0; i < size;) {
    if (std::isspace(static_cast<unsigned char>(line[i]))) {
      ++i;
      continue;
    }
    size_t end = i + 1;
    if (line[i] == '"') {
      end = std::min(line.find('"', i + 1), size);
      words.push_back(line.substr(i, end - i));
      i = std::min(end + 1, size);
      continue;
    }
    if (line.compare(i, 3, "...") == 0) {
      end = i + 3;
    } else if (StartsName(line[i])) {
      // A dot belongs to a name if the name continues after it.
      while (StartsName(at(end)) || IsDigit(at(end)) || (at(end) == '.' && StartsName(at(end + 1))))
        ++end;
    } else if (IsDigit(line[i]) || (line[i] == '-' && IsDigit(at(i + 1)))) {
      while (IsDigit(at(end)) || at(end) == '.' || at(end) == 'e' ||
             (at(end) == '-' && at(end - 1) == 'e'))
        ++end;
    }
    words.push_back(line.substr(i, end - i));
    i = end;
  }
  return words;
}

bool IsName(const std::string& word) { return !word.empty() && StartsName(word[0]); }

bool IsNumber(const std::string& word) {
  return !word.empty() && (IsDigit(word[0]) || (word.size() > 1 && word[0] == '-'));
}

absl::Status RuleError(int line, const std::string& rule, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, rule.empty() ? "" : ", rule '",
                                                 rule, rule.empty() ? "" : "'", ": ", what));
}

}  // namespace espalier
