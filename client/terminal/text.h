// Text as a terminal shows it: UTF-8 with display widths.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

// Columns that `text` (UTF-8) takes: combining marks none, East Asian wide characters and emoji
// two. Escape sequences written by Style count nothing.
int DisplayWidth(absl::string_view text);

// What others wrote (names, prompts, error texts), made safe to print: control characters, escape
// sequences among them, and bytes that are no UTF-8 become U+FFFD; newlines and tabs stay if
// `keep_lines`, otherwise they become spaces.
std::string Printable(absl::string_view text, bool keep_lines = false);

// Bytes of `text` before the first that are no UTF-8; its size if there are none.
size_t ValidUtf8(absl::string_view text);

// Cut to at most `width` columns, the last of them an ellipsis where something was cut.
std::string Truncate(absl::string_view text, int width, bool unicode = true);

enum class Align { kLeft, kRight, kCenter };
std::string Pad(absl::string_view text, int width, Align align);

// "1.5 MiB", "512 B".
std::string FormatBytes(double bytes);
// "4.26 M", "12.3 k", "87": counts and rates.
std::string FormatCount(double value);
// Three significant digits for what is short, otherwise hours, minutes and seconds: "12.3 ms",
// "4.21 s", "3m 07s", "2h 05m".
std::string FormatSeconds(double seconds, bool unicode = true);
// As many digits as a loss needs: "2.3041", "0.000412", "nan".
std::string FormatLoss(double value);

}  // namespace espalier
