// Sizes and rates in machine files: a number in base units, or text with a unit ("450 GB/s").
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace espalier {

enum class QuantityKind { kBytes, kBytesPerSecond, kSeconds, kFlopPerSecond };

// "450 GB/s" -> 450e9, "400 Gbit/s" -> 50e9, "5 us" -> 5e-6 (the nearest double). Accepts any sign
// and magnitude that a double holds; the caller checks the range. Returns InvalidArgument, with the
// accepted units, for no number, overflow, or a missing or wrong unit.
absl::StatusOr<double> ParseQuantity(const std::string& text, QuantityKind kind);

// Returns a short text that ParseQuantity maps to exactly `value`; empty if there is none.
std::string FormatQuantity(double value, QuantityKind kind);

// "bytes", "bytes/s", "seconds", "FLOP/s".
const char* BaseUnit(QuantityKind kind);

}  // namespace espalier
