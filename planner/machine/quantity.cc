#include "planner/machine/quantity.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace espalier {
namespace {

// In base units: value * times / parts. One factor is 1 or both are exact, so there is one
// rounding.
struct Unit {
  const char* name;
  QuantityKind kind;
  double times;
  double parts;
};

// By kind: first the units used for output, largest first. MB is 10^6, MiB 2^20.
constexpr std::array<Unit, 33> kUnits = {{
    {"TB", QuantityKind::kBytes, 1e12, 1},
    {"GB", QuantityKind::kBytes, 1e9, 1},
    {"MB", QuantityKind::kBytes, 1e6, 1},
    {"kB", QuantityKind::kBytes, 1e3, 1},
    {"TiB", QuantityKind::kBytes, 0x1p40, 1},
    {"GiB", QuantityKind::kBytes, 0x1p30, 1},
    {"MiB", QuantityKind::kBytes, 0x1p20, 1},
    {"KiB", QuantityKind::kBytes, 0x1p10, 1},
    {"B", QuantityKind::kBytes, 1, 1},
    {"TB/s", QuantityKind::kBytesPerSecond, 1e12, 1},
    {"GB/s", QuantityKind::kBytesPerSecond, 1e9, 1},
    {"MB/s", QuantityKind::kBytesPerSecond, 1e6, 1},
    {"kB/s", QuantityKind::kBytesPerSecond, 1e3, 1},
    {"TiB/s", QuantityKind::kBytesPerSecond, 0x1p40, 1},
    {"GiB/s", QuantityKind::kBytesPerSecond, 0x1p30, 1},
    {"MiB/s", QuantityKind::kBytesPerSecond, 0x1p20, 1},
    {"KiB/s", QuantityKind::kBytesPerSecond, 0x1p10, 1},
    {"B/s", QuantityKind::kBytesPerSecond, 1, 1},
    {"Tbit/s", QuantityKind::kBytesPerSecond, 1e12, 8},
    {"Gbit/s", QuantityKind::kBytesPerSecond, 1e9, 8},
    {"Mbit/s", QuantityKind::kBytesPerSecond, 1e6, 8},
    {"kbit/s", QuantityKind::kBytesPerSecond, 1e3, 8},
    {"bit/s", QuantityKind::kBytesPerSecond, 1, 8},
    {"s", QuantityKind::kSeconds, 1, 1},
    {"ms", QuantityKind::kSeconds, 1, 1e3},
    {"us", QuantityKind::kSeconds, 1, 1e6},
    {"ns", QuantityKind::kSeconds, 1, 1e9},
    {"PFLOP/s", QuantityKind::kFlopPerSecond, 1e15, 1},
    {"TFLOP/s", QuantityKind::kFlopPerSecond, 1e12, 1},
    {"GFLOP/s", QuantityKind::kFlopPerSecond, 1e9, 1},
    {"MFLOP/s", QuantityKind::kFlopPerSecond, 1e6, 1},
    {"kFLOP/s", QuantityKind::kFlopPerSecond, 1e3, 1},
    {"FLOP/s", QuantityKind::kFlopPerSecond, 1, 1},
}};

absl::Status BadQuantity(const std::string& text, const char* what, QuantityKind kind) {
  constexpr size_t kShown = 40;
  std::string names;
  for (const Unit& unit : kUnits) {
    if (unit.kind == kind) absl::StrAppend(&names, names.empty() ? "" : ", ", unit.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::Utf8SafeCHexEscape(text.substr(0, kShown)),
                   text.size() > kShown ? "..." : "", "\" ", what, "; accepted: a number of ",
                   BaseUnit(kind), ", or text of a number and one of the units ", names));
}

}  // namespace

const char* BaseUnit(QuantityKind kind) {
  switch (kind) {
    case QuantityKind::kBytes:
      return "bytes";
    case QuantityKind::kBytesPerSecond:
      return "bytes/s";
    case QuantityKind::kSeconds:
      return "seconds";
    case QuantityKind::kFlopPerSecond:
      return "FLOP/s";
  }
  return "";
}

absl::StatusOr<double> ParseQuantity(const std::string& text, QuantityKind kind) {
  constexpr size_t kLongest = 64;
  if (text.size() > kLongest) return BadQuantity(text, "is too long", kind);
  const size_t end = std::min(text.find_first_not_of("0123456789.+-eE"), text.size());
  double number = 0;
  if (!absl::SimpleAtod(text.substr(0, end), &number)) {
    return BadQuantity(text, "does not begin with a number", kind);
  }
  const std::string name = text.substr(std::min(text.find_first_not_of(' ', end), text.size()));
  for (const Unit& unit : kUnits) {
    if (unit.kind != kind || name != unit.name) continue;
    const double value = number * unit.times / unit.parts;
    if (!std::isfinite(value)) return BadQuantity(text, "is too large", kind);
    return value;
  }
  return BadQuantity(text, name.empty() ? "has no unit" : "has an unknown unit", kind);
}

std::string FormatQuantity(double value, QuantityKind kind) {
  constexpr size_t kShort = 8;
  for (const Unit& unit : kUnits) {
    if (unit.kind != kind) continue;
    const double number = value * unit.parts / unit.times;
    if (!(number >= 1)) continue;
    const std::string digits = absl::StrFormat("%.15g", number);
    if (digits.size() > kShort) continue;
    const std::string text = absl::StrCat(digits, " ", unit.name);
    const absl::StatusOr<double> back = ParseQuantity(text, kind);
    if (back.ok() && *back == value) return text;
  }
  return "";
}

}  // namespace espalier
