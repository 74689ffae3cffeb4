#include "ops/probe/expression.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/nearest.h"

namespace espalier {
namespace {

constexpr std::array<std::pair<const char*, Reduction::Kind>, 12> kReductions = {
    {{"full", Reduction::kFull},
     {"norm", Reduction::kNorm},
     {"mean", Reduction::kMean},
     {"std", Reduction::kStd},
     {"min", Reduction::kMin},
     {"max", Reduction::kMax},
     {"count_nan", Reduction::kCountNan},
     {"histogram", Reduction::kHistogram},
     {"quantiles", Reduction::kQuantiles},
     {"sample", Reduction::kSample},
     {"top_k", Reduction::kTopK},
     {"confusion", Reduction::kConfusion}}};
constexpr std::array<std::pair<const char*, ProbeTarget::Kind>, 6> kTargets = {
    {{"value", ProbeTarget::kValue},
     {"param", ProbeTarget::kParam},
     {"grad", ProbeTarget::kGrad},
     {"update", ProbeTarget::kUpdate},
     {"state", ProbeTarget::kState},
     {"batch", ProbeTarget::kBatch}}};

constexpr int64_t kDefaultRanges = 64;
constexpr int64_t kMostElements = 65536;  // of an answer: ranges, samples, quantiles
constexpr size_t kLongestProbe = 4096;    // bytes

template <typename Names, typename Kind>
std::string NameOfKind(const Names& names, Kind kind) {
  for (const auto& [name, k] : names) {
    if (k == kind) return name;
  }
  return "";
}

template <typename Names>
std::string NamesOf(const Names& names) {
  return absl::StrJoin(names, ", ", [](std::string* out, const auto& n) { *out += n.first; });
}

// Characters of a name without quotes.
bool IsBare(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte > ' ' && byte != 0x7f && c != ',' && c != '(' && c != ')' && c != '\'' && c != '"';
}

std::string Quoted(const std::string& name) {
  if (!name.empty() && std::all_of(name.begin(), name.end(), IsBare)) return name;
  const char quote = name.find('"') == std::string::npos ? '"' : '\'';
  return absl::StrCat(std::string(1, quote), name, std::string(1, quote));
}

// The shortest text that is parsed as the same double.
std::string NumberText(double value) {
  for (const int digits : {6, 15, 16, 17}) {
    std::string text = absl::StrFormat("%.*g", digits, value);
    double parsed = 0;
    if (absl::SimpleAtod(text, &parsed) && parsed == value) return text;
  }
  return absl::StrCat(value);
}

// Arguments after the target.
std::string ArgumentsText(const Reduction& reduction) {
  switch (reduction.kind) {
    case Reduction::kHistogram:
      if (reduction.bounds.has_value()) {
        return absl::StrCat(reduction.count, ", ", NumberText(reduction.bounds->first), ", ",
                            NumberText(reduction.bounds->second));
      }
      return absl::StrCat(reduction.count);
    case Reduction::kSample:
    case Reduction::kTopK:
      return absl::StrCat(reduction.count);
    case Reduction::kQuantiles:
      return absl::StrJoin(reduction.quantiles, ", ",
                           [](std::string* out, double q) { *out += NumberText(q); });
    default:
      return "";
  }
}

absl::Status CheckLength(size_t bytes, absl::string_view how) {
  if (bytes <= kLongestProbe) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a probe has ", bytes, " bytes", how, "; the most are ", kLongestProbe));
}

class Parser {
 public:
  explicit Parser(absl::string_view text) : text_(text) {}

  absl::StatusOr<ProbeExpression> Probe() {
    if (absl::Status s = CheckText(); !s.ok()) return s;
    if (absl::StripAsciiWhitespace(text_).empty()) {
      return absl::InvalidArgumentError(
          "a probe is empty; accepted: a name, such as loss, or what is asked of one, such as "
          "norm(grad(w))");
    }
    ProbeExpression probe;
    Skip();
    const size_t start = at_;
    const auto word = Word();
    if (!word.ok()) return word.status();
    const auto* reduction = quoted_ ? nullptr : Find(kReductions, *word);
    if (!Next('(') || reduction == nullptr) {
      at_ = start;
      auto target = Target();
      if (!target.ok()) return target.status();
      probe.targets.push_back(*std::move(target));
      if (absl::Status s = End(); !s.ok()) return s;
      return probe;
    }
    Take('(');
    probe.reduction.kind = reduction->second;
    const size_t targets = reduction->second == Reduction::kConfusion ? 2 : 1;
    while (probe.targets.size() < targets) {
      if (!probe.targets.empty() && !Take(',')) {
        return Error(at_, "', ' and the labels",
                     "confusion needs two targets, logits and labels: confusion(logits, "
                     "batch(label))");
      }
      const size_t before = SkipTo();
      auto target = Target();
      if (!target.ok()) return target.status();
      if (targets > 1 && target->has_wildcard()) {
        return Error(before, "a name without '*'", "confusion compares one pair of values");
      }
      probe.targets.push_back(*std::move(target));
    }
    if (absl::Status s = Arguments(&probe.reduction, /*first=*/false); !s.ok()) return s;
    if (!Take(')')) return Error(at_, "')'");
    if (absl::Status s = End(); !s.ok()) return s;
    return probe;
  }

  absl::StatusOr<Reduction> ReductionAlone() {
    if (absl::Status s = CheckText(); !s.ok()) return s;
    const size_t start = SkipTo();
    const auto word = Word();
    if (!word.ok()) return word.status();
    const auto* named = quoted_ ? nullptr : Find(kReductions, *word);
    if (named == nullptr) {
      return Error(start, absl::StrCat("a reduction: ", NamesOf(kReductions)));
    }
    Reduction reduction;
    reduction.kind = named->second;
    const bool parentheses = Take('(');
    if (absl::Status s = Arguments(&reduction, parentheses); !s.ok()) return s;
    if (parentheses && !Take(')')) return Error(at_, "')'");
    if (absl::Status s = End(); !s.ok()) return s;
    return reduction;
  }

 private:
  template <typename Names>
  static const typename Names::value_type* Find(const Names& names, absl::string_view word) {
    for (const auto& entry : names) {
      if (word == entry.first) return &entry;
    }
    return nullptr;
  }

  absl::Status CheckText() const { return CheckLength(text_.size(), ""); }

  // "column 5: expected ')'; <why>", the text, and a mark below the place.
  absl::Status Error(size_t place, absl::string_view expected, absl::string_view why = "") const {
    size_t column = 1;  // in characters
    for (size_t i = 0; i < place && i < text_.size(); ++i) {
      if ((static_cast<unsigned char>(text_[i]) & 0xc0) != 0x80) ++column;
    }
    std::string line(text_);  // tabs and line ends would move the mark
    std::replace_if(
        line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
    return absl::InvalidArgumentError(
        absl::StrCat("probe, column ", column, ": expected ", expected, why.empty() ? "" : "; ",
                     why, "\n  ", line, "\n  ", std::string(column - 1, ' '), "^"));
  }

  void Skip() {
    while (at_ < text_.size() && absl::ascii_isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  size_t SkipTo() {
    Skip();
    return at_;
  }
  bool Next(char c) {
    Skip();
    return at_ < text_.size() && text_[at_] == c;
  }
  bool Take(char c) {
    if (!Next(c)) return false;
    ++at_;
    return true;
  }
  absl::Status End() {
    return SkipTo() == text_.size() ? absl::OkStatus() : Error(at_, "the end of the probe");
  }

  // A name, quoted or not.
  absl::StatusOr<std::string> Word() {
    const size_t start = SkipTo();
    quoted_ = at_ < text_.size() && (text_[at_] == '\'' || text_[at_] == '"');
    if (quoted_) {
      const size_t end = text_.find(text_[at_], at_ + 1);
      if (end == absl::string_view::npos) {
        return Error(text_.size(), std::string(1, text_[at_]),
                     absl::StrCat("the quote of column ", start + 1, " is not closed"));
      }
      at_ = end + 1;
      if (end == start + 1) return Error(start, "a name", "it is empty");
      return std::string(text_.substr(start + 1, end - start - 1));
    }
    while (at_ < text_.size() && IsBare(text_[at_])) ++at_;
    if (at_ == start) return Error(start, "a name");
    return std::string(text_.substr(start, at_ - start));
  }

  absl::StatusOr<ProbeTarget> Target() {
    const size_t start = SkipTo();
    auto word = Word();
    if (!word.ok()) return word.status();
    if (!Next('(')) return ProbeTarget{ProbeTarget::kValue, *std::move(word), ""};
    const auto* kind = quoted_ ? nullptr : Find(kTargets, *word);
    if (kind == nullptr) return NotATarget(start, *word);
    Take('(');
    ProbeTarget target{kind->second, "", ""};
    auto name = Word();
    if (!name.ok()) return name.status();
    target.name = *std::move(name);
    if (kind->second == ProbeTarget::kState) {
      if (!Take(',')) {
        return Error(at_, "',' and a slot of the optimizer",
                     "for example state(dense/kernel, adam_m)");
      }
      auto slot = Word();
      if (!slot.ok()) return slot.status();
      target.slot = *std::move(slot);
    }
    if (!Take(')')) return Error(at_, "')'");
    return target;
  }

  absl::Status NotATarget(size_t place, const std::string& word) const {
    if (Find(kReductions, word) != nullptr && !quoted_) {
      return Error(place, "a target",
                   absl::StrCat("'", word, "' is a reduction, and a probe has one reduction"));
    }
    std::vector<std::string> known;
    for (const auto& [name, kind] : kTargets) known.emplace_back(name);
    const bool outermost = text_.find_first_not_of(" \t") == place;
    if (outermost) {
      for (const auto& [name, kind] : kReductions) known.emplace_back(name);
    }
    return Error(
        place,
        absl::StrCat(outermost ? absl::StrCat("a reduction (", NamesOf(kReductions), "), or ") : "",
                     "a target (", NamesOf(kTargets), ", or a name)"),
        absl::StrCat("'", word, "' is neither", DidYouMean(word, known)));
  }

  // Numbers after the target. `first`: before them is "(" rather than a target.
  absl::Status Arguments(Reduction* reduction, bool first) {
    std::vector<std::pair<double, size_t>> numbers;
    bool more = first ? !Next(')') : Take(',');
    while (more) {
      const size_t place = SkipTo();
      const auto word = Word();
      double value = 0;
      if (!word.ok() || quoted_ || !absl::SimpleAtod(*word, &value) || !std::isfinite(value)) {
        return Error(place, "a number");
      }
      if (static_cast<int64_t>(numbers.size()) == kMostElements) {
        return Error(place, absl::StrCat("at most ", kMostElements, " numbers"));
      }
      numbers.emplace_back(value, place);
      more = Take(',');
    }
    switch (reduction->kind) {
      case Reduction::kHistogram:
        return HistogramArguments(numbers, reduction);
      case Reduction::kQuantiles:
        reduction->quantiles = {};
        for (const auto& [q, place] : numbers) {
          if (q < 0 || q > 1) return Error(place, "a quantile from 0 to 1");
          reduction->quantiles.push_back(q);
        }
        if (numbers.empty()) reduction->quantiles = {0, 0.25, 0.5, 0.75, 1};
        return absl::OkStatus();
      case Reduction::kSample:
      case Reduction::kTopK: {
        const std::string name = NameOfKind(kReductions, reduction->kind);
        if (numbers.empty()) {
          return Error(at_, "a count of elements", absl::StrCat("for example ", name, "(x, 10)"));
        }
        if (numbers.size() > 1) return Error(numbers[1].second, "')'");
        return Count(numbers[0], &reduction->count);
      }
      default:
        if (numbers.empty()) return absl::OkStatus();
        return Error(numbers[0].second, "')'",
                     absl::StrCat(NameOfKind(kReductions, reduction->kind), " has no numbers"));
    }
  }

  absl::Status Count(const std::pair<double, size_t>& number, int64_t* count) const {
    if (number.first != std::floor(number.first) || number.first < 1 ||
        number.first > static_cast<double>(kMostElements)) {
      return Error(number.second, absl::StrCat("a whole number from 1 to ", kMostElements));
    }
    *count = static_cast<int64_t>(number.first);
    return absl::OkStatus();
  }

  absl::Status HistogramArguments(const std::vector<std::pair<double, size_t>>& numbers,
                                  Reduction* reduction) const {
    reduction->count = kDefaultRanges;
    if (numbers.empty()) return absl::OkStatus();
    if (absl::Status s = Count(numbers[0], &reduction->count); !s.ok()) return s;
    if (numbers.size() == 1) return absl::OkStatus();
    if (numbers.size() == 2) {
      return Error(at_, "', ' and the upper end",
                   "a histogram has no ends or two: histogram(x, 64, -1, 1)");
    }
    if (numbers.size() > 3) return Error(numbers[3].second, "')'");
    const double low = numbers[1].first;
    const double high = numbers[2].first;
    if (!(low < high)) return Error(numbers[2].second, "an upper end above the lower one");
    if (!std::isfinite(high - low)) return Error(numbers[2].second, "ends closer to each other");
    reduction->bounds = {low, high};
    return absl::OkStatus();
  }

  absl::string_view text_;
  size_t at_ = 0;
  bool quoted_ = false;  // the last Word was
};

}  // namespace

bool ProbeTarget::has_wildcard() const {
  return name.find('*') != std::string::npos || slot.find('*') != std::string::npos;
}

bool Reduction::is_scalar() const { return kind >= kNorm && kind <= kCountNan; }

std::string ToString(const ProbeTarget& target) {
  if (target.kind == ProbeTarget::kValue) return Quoted(target.name);
  return absl::StrCat(NameOfKind(kTargets, target.kind), "(", Quoted(target.name),
                      target.kind == ProbeTarget::kState ? ", " : "",
                      target.kind == ProbeTarget::kState ? Quoted(target.slot) : "", ")");
}

std::string ToString(const Reduction& reduction) {
  const std::string arguments = ArgumentsText(reduction);
  const std::string name = NameOfKind(kReductions, reduction.kind);
  return arguments.empty() ? name : absl::StrCat(name, "(", arguments, ")");
}

std::string TargetsToString(const ProbeExpression& probe) {
  return absl::StrJoin(probe.targets, ", ", [](std::string* out, const ProbeTarget& target) {
    *out += ToString(target);
  });
}

std::string ToString(const ProbeExpression& probe) {
  if (probe.reduction.kind == Reduction::kFull) return TargetsToString(probe);
  const std::string arguments = ArgumentsText(probe.reduction);
  return absl::StrCat(NameOfKind(kReductions, probe.reduction.kind), "(", TargetsToString(probe),
                      arguments.empty() ? "" : ", ", arguments, ")");
}

namespace {

// What was parsed is sent as ToString writes it, which may be longer, and is parsed again.
template <typename Parsed>
absl::StatusOr<Parsed> WithShortText(absl::StatusOr<Parsed> parsed) {
  if (!parsed.ok()) return parsed;
  absl::Status s = CheckLength(ToString(*parsed).size(), ", with its defaults written out");
  if (!s.ok()) return s;
  return parsed;
}

}  // namespace

absl::StatusOr<Reduction> ParseReduction(absl::string_view text) {
  return WithShortText(Parser(text).ReductionAlone());
}

absl::StatusOr<ProbeExpression> ParseProbe(absl::string_view text) {
  return WithShortText(Parser(text).Probe());
}

}  // namespace espalier
