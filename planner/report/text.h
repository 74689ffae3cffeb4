// Makes untrusted text (names of graphs, nodes, devices, files) safe to show in a terminal or on a
// page.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

// Returns valid UTF-8 without control characters, line breaks and bidirectional marks: each of
// these, and each invalid byte, becomes U+FFFD. The result has at most 3 bytes per byte of `text`.
std::string Printable(absl::string_view text);

// Columns of printable text: one per code point, two for wide East Asian ones.
size_t Columns(absl::string_view text);

// Printable text of at most `columns` (>= 1) columns. Keeps the start and the end of longer text,
// with "…" between, because names of nodes differ at both ends.
std::string Shortened(absl::string_view text, size_t columns);

// Printable text padded with spaces to `columns`.
std::string Pad(absl::string_view text, size_t columns);

}  // namespace espalier
