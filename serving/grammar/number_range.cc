#include "serving/grammar/number_range.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace espalier {
namespace {

constexpr int64_t kLargest = 999'999'999'999'999;  // of kMaxDecimalDigits digits

Expression AnyDigit() { return OneOf({{'0', '9'}}); }

// Numbers with the same number of digits, leading zeros included.
Expression DigitsBetween(absl::string_view low, absl::string_view high) {
  const int length = static_cast<int>(low.size());
  if (low == high) return Literal(low);
  if (low == std::string(length, '0') && high == std::string(length, '9')) {
    return Repeat(AnyDigit(), length, length);
  }
  if (low[0] == high[0]) {
    return Sequence({Literal(low.substr(0, 1)), DigitsBetween(low.substr(1), high.substr(1))});
  }
  if (length == 1) {
    return OneOf({{static_cast<uint32_t>(low[0]), static_cast<uint32_t>(high[0])}});
  }
  const std::string nines(length - 1, '9'), zeros(length - 1, '0');
  std::vector<Expression> parts;
  parts.push_back(Sequence({Literal(low.substr(0, 1)), DigitsBetween(low.substr(1), nines)}));
  if (low[0] + 1 < high[0]) {
    parts.push_back(
        Sequence({OneOf({{static_cast<uint32_t>(low[0]) + 1, static_cast<uint32_t>(high[0]) - 1}}),
                  Repeat(AnyDigit(), length - 1, length - 1)}));
  }
  parts.push_back(Sequence({Literal(high.substr(0, 1)), DigitsBetween(zeros, high.substr(1))}));
  return Choice(std::move(parts));
}

// Adds the integers in [low, high] for each number of digits. `behind` gives what follows so many
// digits. REQUIRES: 0 <= low.
template <typename Suffix>
void AddNaturals(int64_t low, int64_t high, absl::string_view sign, const Suffix& behind,
                 std::vector<Expression>* out) {
  int64_t first = 0, last = 9;
  for (int length = 1;; ++length) {
    const int64_t from = std::max(low, first), to = std::min(high, last);
    if (from <= to) {
      out->push_back(Sequence(
          {Literal(sign), DigitsBetween(absl::StrCat(from), absl::StrCat(to)), behind(length)}));
    }
    if (length == 18) break;  // another digit does not fit int64_t
    first = last + 1;
    last = last * 10 + 9;
  }
}

// A bound on the remaining digits: the digits of the bound that remain; nullopt: no bound.
using RemainingDigits = std::optional<std::string>;

// Up to `most` digits behind a point; at least one unless `none`.
std::optional<Expression> Fractions(RemainingDigits low, bool above, const RemainingDigits& high,
                                    bool below, int most, bool none) {
  if (low && low->empty() && !above) low = std::nullopt;  // nothing is less
  if (!low && !high) {
    if (none) return Repeat(AnyDigit(), 0, most);
    return most > 0 ? std::optional(Repeat(AnyDigit(), 1, most)) : std::nullopt;
  }
  std::vector<Expression> ways;
  if (none && !low && (!high->empty() || !below)) ways.push_back(Literal(""));
  const auto head = [](const RemainingDigits& rest, int absent) {
    return !rest ? absent : rest->empty() ? 0 : (*rest)[0] - '0';
  };
  const auto tail = [](const RemainingDigits& rest) -> RemainingDigits {
    return !rest || rest->empty() ? rest : RemainingDigits(rest->substr(1));
  };
  const int least = head(low, 0), greatest = head(high, 9);
  CodePoints free;  // after these digits, the rest is unbounded
  for (int digit = least; most > 0 && digit <= greatest; ++digit) {
    const uint32_t c = static_cast<uint32_t>('0' + digit);
    const bool at_low = low && digit == least, at_high = high && digit == greatest;
    if (!at_low && !at_high) {
      free.emplace_back(c, c);
      continue;
    }
    std::optional<Expression> rest =
        Fractions(at_low ? tail(low) : std::nullopt, above, at_high ? tail(high) : std::nullopt,
                  below, most - 1, /*none=*/true);
    if (rest) ways.push_back(Sequence({OneOf({{c, c}}), *std::move(rest)}));
  }
  if (!free.empty()) {
    ways.push_back(Sequence({OneOf(std::move(free)), Repeat(AnyDigit(), 0, most - 1)}));
  }
  if (ways.empty()) return std::nullopt;
  return Choice(std::move(ways));
}

// As Fractions, with the point; or nothing.
std::optional<Expression> FractionBetween(const RemainingDigits& low, bool above,
                                          const RemainingDigits& high, bool below, int most) {
  std::vector<Expression> ways;
  const bool none = (!low || (low->empty() && !above)) && (!high || !high->empty() || !below);
  if (none) ways.push_back(Literal(""));
  if (std::optional<Expression> digits = Fractions(low, above, high, below, most, false)) {
    ways.push_back(Sequence({Literal("."), *std::move(digits)}));
  }
  if (ways.empty()) return std::nullopt;
  return Choice(std::move(ways));
}

int64_t Whole(const Decimal& decimal) {
  if (decimal.whole.size() > kMaxDecimalDigits) return kLargest + 1;
  return std::stoll(decimal.whole);
}

// Numbers between the magnitudes `low` and `high`, with a sign before them.
void AddMagnitudes(const Bound& low, const std::optional<Bound>& high, int places,
                   absl::string_view sign, std::vector<Expression>* out) {
  const int64_t from = Whole(low.at), to = high ? Whole(high->at) : kLargest + 1;
  const auto max_places = [places](int digits) {
    return std::min(places, kMaxDecimalDigits - digits);
  };
  const auto add = [&](int64_t whole, const RemainingDigits& least, const RemainingDigits& most) {
    const std::string digits = absl::StrCat(whole);
    std::optional<Expression> behind =
        FractionBetween(least, low.exclusive, most, high && high->exclusive,
                        max_places(static_cast<int>(digits.size())));
    if (behind) out->push_back(Sequence({Literal(absl::StrCat(sign, digits)), *behind}));
  };
  if (from > to || from > kLargest) return;
  const RemainingDigits least = low.at.fraction;
  if (from == to) return add(from, least, RemainingDigits(high->at.fraction));
  add(from, least, std::nullopt);
  AddNaturals(
      from + 1, std::min(to - 1, kLargest), sign,
      [&](int digits) { return *FractionBetween({}, false, {}, false, max_places(digits)); }, out);
  if (to <= kLargest) add(to, std::nullopt, RemainingDigits(high->at.fraction));
}

}  // namespace

Expression IntegersBetween(int64_t low, int64_t high) {
  std::vector<Expression> parts;
  const auto nothing = [](int) { return Literal(""); };
  if (low < 0) AddNaturals(std::max<int64_t>(1, -high), -low, "-", nothing, &parts);
  if (high >= 0) AddNaturals(std::max<int64_t>(0, low), high, "", nothing, &parts);
  return Choice(std::move(parts));
}

Decimal ParseDecimal(const std::string& text) {
  Decimal out;
  std::string digits;
  int point = -1, exponent = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '-' && i == 0) out.negative = true;
    if (c >= '0' && c <= '9') digits += c;
    if (c == '.') point = static_cast<int>(digits.size());
    if (c == 'e' || c == 'E') {
      exponent = std::clamp(std::atoi(text.c_str() + i + 1), -400, 400);
      break;
    }
  }
  if (point < 0) point = static_cast<int>(digits.size());
  point += exponent;
  if (point < 0) {
    digits.insert(0, static_cast<size_t>(-point), '0');
    point = 0;
  }
  if (static_cast<size_t>(point) > digits.size()) digits.resize(static_cast<size_t>(point), '0');
  out.whole = digits.substr(0, static_cast<size_t>(point));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole = "0";
  out.fraction = digits.substr(static_cast<size_t>(point));
  while (!out.fraction.empty() && out.fraction.back() == '0') out.fraction.pop_back();
  if (out.zero()) out.negative = false;
  return out;
}

std::optional<Expression> DecimalsBetween(const std::optional<Bound>& low,
                                          const std::optional<Bound>& high, int places) {
  std::vector<Expression> ways;
  // For negative numbers the order of magnitudes is reversed.
  if (!low || low->at.negative) {
    const Bound zero{{}, true};
    const bool below_zero = high && high->at.negative;
    AddMagnitudes(below_zero ? *high : zero, low, places, "-", &ways);
  }
  if (!high || !high->at.negative) {
    const bool above_zero = low && !low->at.negative;
    AddMagnitudes(above_zero ? *low : Bound{}, high, places, "", &ways);
  }
  if (ways.empty()) return std::nullopt;
  return Choice(std::move(ways));
}

}  // namespace espalier
