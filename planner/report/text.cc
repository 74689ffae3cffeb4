#include "planner/report/text.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct CodePoint {
  uint32_t value = 0;
  size_t length = 0;  // bytes; 0: not UTF-8
};

// Decodes the first code point of non-empty text. Refuses overlong forms, surrogates and code
// points beyond Unicode, which browsers interpret differently.
CodePoint Decode(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return {};
  uint32_t value = first & (0x7F >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3F);
  }
  if (length == 3 && value < 0x800) return {};
  if (length == 4 && (value < 0x10000 || value > 0x10FFFF)) return {};
  if (value >= 0xD800 && value <= 0xDFFF) return {};
  return {value, length};
}

bool IsShown(uint32_t c) {
  if (c < 0x20 || (c >= 0x7F && c < 0xA0)) return false;
  if (c == 0x2028 || c == 0x2029) return false;                 // line breaks
  if (c == 0x061C || c == 0x200E || c == 0x200F) return false;  // direction marks
  if ((c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069)) return false;
  return (c & 0xFFFE) != 0xFFFE && !(c >= 0xFDD0 && c <= 0xFDEF);  // noncharacters
}

size_t WidthOf(uint32_t c) {
  const bool wide = (c >= 0x1100 && c <= 0x115F) || (c >= 0x2E80 && c <= 0xA4CF) ||
                    (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0xF900 && c <= 0xFAFF) ||
                    (c >= 0xFE30 && c <= 0xFE6F) || (c >= 0xFF00 && c <= 0xFF60) ||
                    (c >= 0x1F300 && c <= 0x1FAFF) || (c >= 0x20000 && c <= 0x3FFFD);
  return wide ? 2 : 1;
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const CodePoint c = Decode(text);
    const size_t length = c.length == 0 ? 1 : c.length;
    absl::StrAppend(&out, c.length > 0 && IsShown(c.value) ? text.substr(0, length) : kReplacement);
    text.remove_prefix(length);
  }
  return out;
}

size_t Columns(absl::string_view text) {
  size_t columns = 0;
  while (!text.empty()) {
    const CodePoint c = Decode(text);
    columns += WidthOf(c.value);
    text.remove_prefix(c.length == 0 ? 1 : c.length);
  }
  return columns;
}

std::string Shortened(absl::string_view text, size_t columns) {
  const std::string printable = Printable(text);
  if (Columns(printable) <= columns) return printable;
  if (columns == 0) return "";
  // The start of each code point, and the columns before it.
  std::vector<size_t> starts, before;
  size_t total = 0;
  for (size_t i = 0; i < printable.size();) {
    const CodePoint c = Decode(absl::string_view(printable).substr(i));
    starts.push_back(i);
    before.push_back(total);
    total += WidthOf(c.value);
    i += c.length;
  }
  const size_t head_columns = (columns - 1) / 2, tail_columns = columns - 1 - head_columns;
  size_t head = 0, tail = starts.size();
  while (head + 1 < starts.size() && before[head + 1] <= head_columns) ++head;
  while (tail > 0 && total - before[tail - 1] <= tail_columns) --tail;
  const size_t tail_start = tail < starts.size() ? starts[tail] : printable.size();
  return absl::StrCat(printable.substr(0, starts[head]), "…", printable.substr(tail_start));
}

std::string Pad(absl::string_view text, size_t columns) {
  std::string out = Printable(text);
  const size_t width = Columns(out);
  if (width < columns) out.append(columns - width, ' ');
  return out;
}

}  // namespace espalier
