#include "client/terminal/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace espalier {
namespace {

constexpr char32_t kInvalid = 0xFFFFFFFF;

// Reads one code point and advances `at`; returns kInvalid (and advances one byte) for invalid
// UTF-8.
char32_t Next(absl::string_view text, size_t* at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte((*at)++);
  if (first < 0x80) return first;
  const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
  if (first < 0xC2 || first > 0xF4 || *at + more > text.size()) return kInvalid;
  char32_t code = first & (0x3F >> more);
  for (int i = 0; i < more; ++i) {
    if ((byte(*at + i) & 0xC0) != 0x80) return kInvalid;
    code = code << 6 | (byte(*at + i) & 0x3F);
  }
  constexpr char32_t kSmallest[] = {0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[more] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
    return kInvalid;
  *at += more;
  return code;
}

struct Range {
  char32_t first, last;
};

bool In(char32_t code, const Range* begin, const Range* end) {
  const Range* it =
      std::upper_bound(begin, end, code, [](char32_t c, const Range& r) { return c < r.first; });
  return it != begin && code <= (it - 1)->last;
}

// Unicode 15, widened to whole blocks where the rest of a block is unassigned.
constexpr Range kZeroWidth[] = {
    {0x0300, 0x036F},  {0x0483, 0x0489}, {0x0591, 0x05BD}, {0x0610, 0x061A}, {0x064B, 0x065F},
    {0x06D6, 0x06DC},  {0x0900, 0x0902}, {0x093C, 0x093C}, {0x0E31, 0x0E31}, {0x0E34, 0x0E3A},
    {0x0E47, 0x0E4E},  {0x1AB0, 0x1AFF}, {0x1DC0, 0x1DFF}, {0x200B, 0x200F}, {0x202A, 0x202E},
    {0x2060, 0x2064},  {0x20D0, 0x20F0}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}, {0xFEFF, 0xFEFF},
    {0xE0100, 0xE01EF}};
constexpr Range kWide[] = {
    {0x1100, 0x115F},   {0x231A, 0x231B},   {0x23E9, 0x23EC},  {0x25FD, 0x25FE}, {0x2614, 0x2615},
    {0x2648, 0x2653},   {0x26A1, 0x26A1},   {0x26AA, 0x26AB},  {0x2705, 0x2705}, {0x274C, 0x274C},
    {0x2753, 0x2755},   {0x2795, 0x2797},   {0x2B1B, 0x2B1C},  {0x2E80, 0x303E}, {0x3041, 0x33FF},
    {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xA000, 0xA4CF},  {0xA960, 0xA97F}, {0xAC00, 0xD7A3},
    {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},   {0xFF00, 0xFF60},  {0xFFE0, 0xFFE6}, {0x1F300, 0x1F64F},
    {0x1F680, 0x1F6FF}, {0x1F900, 0x1F9FF}, {0x20000, 0x3FFFD}};

int WidthOf(char32_t code) {
  if (code == kInvalid) return 1;
  if (code < 0x20 || code == 0x7F) return 0;
  if (code < 0x300) return 1;
  if (In(code, std::begin(kZeroWidth), std::end(kZeroWidth))) return 0;
  return In(code, std::begin(kWide), std::end(kWide)) ? 2 : 1;
}

// Returns the position after an escape sequence of Style ("\x1b[...m") at `at`; `at` itself if
// there is none.
size_t SkipEscape(absl::string_view text, size_t at) {
  if (at + 1 >= text.size() || text[at] != '\x1b' || text[at + 1] != '[') return at;
  const size_t end = text.find('m', at);
  return end == absl::string_view::npos ? at : end + 1;
}

}  // namespace

int DisplayWidth(absl::string_view text) {
  int width = 0;
  for (size_t at = 0; at < text.size();) {
    if (const size_t past = SkipEscape(text, at); past != at) {
      at = past;
      continue;
    }
    width += WidthOf(Next(text, &at));
  }
  return width;
}

size_t ValidUtf8(absl::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (Next(text, &at) == kInvalid) return begin;
  }
  return text.size();
}

std::string Printable(absl::string_view text, bool keep_lines) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const char32_t code = Next(text, &at);
    if (code == '\n' || code == '\t') {
      out += keep_lines ? static_cast<char>(code) : ' ';
    } else if (code == kInvalid || code < 0x20 || (code >= 0x7F && code < 0xA0) ||
               (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069)) {
      out += "\xEF\xBF\xBD";
    } else {
      out.append(text.data() + start, at - start);
    }
  }
  return out;
}

std::string Truncate(absl::string_view text, int width, bool unicode) {
  if (DisplayWidth(text) <= width) return std::string(text);
  const int mark = unicode ? 1 : 3;
  if (width < mark) return std::string(std::max(width, 0), '.');
  std::string out;
  int used = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const int w = WidthOf(Next(text, &at));
    if (used + w > width - mark) break;
    used += w;
    out.append(text.data() + start, at - start);
  }
  return out + (unicode ? "\u2026" : "...");
}

std::string TruncateMiddle(absl::string_view text, int width, bool unicode) {
  if (DisplayWidth(text) <= width) return std::string(text);
  const int mark = unicode ? 1 : 3;
  if (width < mark + 2) return Truncate(text, width, unicode);
  const std::string head = Truncate(text, (width - mark) / 2 + mark, unicode);
  int left = width - DisplayWidth(head);  // for the end
  size_t end = text.size();
  for (size_t at = 0; at < text.size();) {
    if (DisplayWidth(text.substr(at)) <= left) {
      end = at;
      break;
    }
    Next(text, &at);
  }
  return absl::StrCat(head, text.substr(end));
}

std::string Pad(absl::string_view text, int width, Align align) {
  const int missing = width - DisplayWidth(text);
  if (missing <= 0) return std::string(text);
  const int left = align == Align::kLeft ? 0 : align == Align::kRight ? missing : missing / 2;
  return absl::StrCat(std::string(left, ' '), text, std::string(missing - left, ' '));
}

std::string FormatNumber(double value) {
  // The largest double has 309 digits, the smallest more than 1,000 behind the point.
  char digits[1200];
  const auto end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed);
  return std::string(digits, end.ptr);
}

std::string FormatBytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (std::abs(bytes) >= 1024 && unit + 1 < std::size(units)) {
    bytes /= 1024;
    ++unit;
  }
  if (unit == 0) return absl::StrFormat("%.0f B", bytes);
  return absl::StrFormat(std::abs(bytes) < 10    ? "%.2f %s"
                         : std::abs(bytes) < 100 ? "%.1f %s"
                                                 : "%.0f %s",
                         bytes, units[unit]);
}

std::string FormatCount(double value) {
  const char* units[] = {"", " k", " M", " G", " T"};
  size_t unit = 0;
  while (std::abs(value) >= 1000 && unit + 1 < std::size(units)) {
    value /= 1000;
    ++unit;
  }
  if (unit == 0 && value == std::floor(value)) return absl::StrFormat("%.0f", value);
  return absl::StrFormat(std::abs(value) < 10    ? "%.2f%s"
                         : std::abs(value) < 100 ? "%.1f%s"
                                                 : "%.0f%s",
                         value, units[unit]);
}

std::string FormatSeconds(double seconds, bool unicode) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto digits = [](double v, const char* unit) {
    return absl::StrFormat(v < 9.995 ? "%.2f %s" : v < 99.95 ? "%.1f %s" : "%.0f %s", v, unit);
  };
  if (seconds == 0) return "0 s";
  if (seconds < 0.9995e-3) return digits(seconds * 1e6, unicode ? "\u00b5s" : "us");
  if (seconds < 0.9995) return digits(seconds * 1e3, "ms");
  if (seconds < 59.95) return digits(seconds, "s");
  const int64_t whole = static_cast<int64_t>(std::min(seconds + 0.5, 1e12));
  if (whole < 3600) return absl::StrFormat("%dm %02ds", whole / 60, whole % 60);
  return absl::StrFormat("%dh %02dm", whole / 3600, whole % 3600 / 60);
}

std::string FormatLoss(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::abs(value);
  if (size != 0 && size < 0.01) {
    // Three digits, without an exponent as far as they can be read.
    if (size < 1e-12) return absl::StrFormat("%.3g", value);
    const int digits = 2 - static_cast<int>(std::floor(std::log10(size)));
    std::string text = absl::StrFormat("%.*f", digits, value);
    text.erase(text.find_last_not_of('0') + 1);
    return text;
  }
  return absl::StrFormat(size < 100 ? "%.4f" : "%.1f", value);
}

}  // namespace espalier
