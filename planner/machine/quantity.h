// Sizes and rates in machine files: a number in base units, or text with a unit ("450 GB/s").
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace espalier {

enum class QuantityKind { kBytes, kBytesPerSecond, kSeconds, kFlopPerSecond };

// "450 GB/s" -> 450e9, "400 Gbit/s" -> 50e9, "5 us" -> 5e-6 (the double nearest to it). Any sign
// and size that a double holds; the caller knows what is allowed. InvalidArgument, with the units
// that are accepted: no number, too large a number, no unit or one of another kind.
absl::StatusOr<double> ParseQuantity(const std::string& text, QuantityKind kind);

// A short text that ParseQuantity reads as exactly this value; empty if there is none.
std::string FormatQuantity(double value, QuantityKind kind);

// "bytes", "bytes/s", "seconds", "FLOP/s".
const char* BaseUnit(QuantityKind kind);

}  // namespace espalier
