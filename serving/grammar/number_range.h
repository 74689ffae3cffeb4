// Ranges of numbers as JSON writes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "serving/grammar/grammar.h"

namespace espalier {

// Integers in [low, high]. REQUIRES: low <= high; both have at most 18 digits.
Expression IntegersBetween(int64_t low, int64_t high);

// Decimal numbers of so many digits map to different doubles.
inline constexpr int kMaxDecimalDigits = 15;

// A decimal number.
struct Decimal {
  bool negative = false;
  std::string whole = "0";  // without leading zeros
  std::string fraction;     // without trailing zeros

  bool zero() const { return whole == "0" && fraction.empty(); }
};

// Parses a JSON number with an exponent from -400 to 400.
Decimal ParseDecimal(const std::string& text);

struct Bound {
  Decimal at;
  bool exclusive = false;
};

// Numbers without exponent, with at most kMaxDecimalDigits digits and at most `places` decimal
// places. An absent bound is no bound. Returns nullopt if no such number lies between the bounds.
std::optional<Expression> DecimalsBetween(const std::optional<Bound>& low,
                                          const std::optional<Bound>& high, int places);

}  // namespace espalier
