// Numbers between bounds, as JSON writes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "serving/grammar/grammar.h"

namespace espalier {

// Integers from low to high, both included. REQUIRES: low <= high, both of at most 18 digits.
Expression IntegersBetween(int64_t low, int64_t high);

// Up to here a decimal number and the double next to it tell each other apart.
inline constexpr int kMaxDecimalDigits = 15;

// A decimal number.
struct Decimal {
  bool negative = false;
  std::string whole = "0";  // without leading zeros
  std::string fraction;     // without trailing zeros; empty: none

  bool zero() const { return whole == "0" && fraction.empty(); }
};

// As JSON writes numbers, with exponents up to 400 either way.
Decimal ParseDecimal(const std::string& text);

struct Bound {
  Decimal at;
  bool exclusive = false;
};

// Numbers without exponent, of at most kMaxDecimalDigits digits, at most `places` of them behind
// the point. nullopt if no such number lies between the bounds; an absent bound is none.
std::optional<Expression> DecimalsBetween(const std::optional<Bound>& low,
                                          const std::optional<Bound>& high, int places);

}  // namespace espalier
