// Text that people gave (names of graphs, nodes, devices, files), made fit to be shown in a
// terminal or on a page. It may hold anything: such names come out of other people's model files.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

// Valid UTF-8 without control characters, line breaks and marks that turn the direction of writing:
// each of these, and each byte that is no UTF-8, becomes U+FFFD. At most 3 bytes per byte of
// `text`.
std::string Printable(absl::string_view text);

// Columns that printable text takes: one per code point, two for the wide ones of East Asia.
size_t Columns(absl::string_view text);

// Printable, at most `columns` wide (1 or more); of longer text the start and the end, with "…"
// between them, because names of nodes differ at both.
std::string Shortened(absl::string_view text, size_t columns);

// Printable text, filled up with spaces to `columns`.
std::string Pad(absl::string_view text, size_t columns);

}  // namespace espalier
