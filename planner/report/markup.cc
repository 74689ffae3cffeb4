#include "planner/report/markup.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "planner/report/text.h"

namespace espalier {
namespace {

// Of printable text.
std::string EscapeMarkup(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace

std::string Escaped(absl::string_view text) { return EscapeMarkup(Printable(text)); }

std::string EscapedShort(absl::string_view text, size_t columns) {
  return EscapeMarkup(Shortened(text, columns));
}

std::string Coordinate(double value) {
  // Beyond a million the drawing is broken anyway, and browsers differ.
  if (!std::isfinite(value) || std::abs(value) < 0.005) return "0";
  std::string text = absl::StrFormat("%.2f", std::clamp(value, -1e6, 1e6));
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string Hover(absl::string_view text) {
  std::string out = "<title>";
  bool first = true;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::StrAppend(&out, first ? "" : "\n", Escaped(line));
    first = false;
  }
  return out + "</title>";
}

const std::string& HoverBudget::Choose(const std::string& full, const std::string& brief) {
  if (full.size() > left_) return brief;
  left_ -= full.size();
  return full;
}

std::string SvgText(double x, double y, absl::string_view css_class, absl::string_view text) {
  return absl::StrCat("<text x=\"", Coordinate(x), "\" y=\"", Coordinate(y), "\" class=\"",
                      css_class, "\">", Escaped(text), "</text>");
}

std::string SvgRect(double x, double y, double width, double height, absl::string_view css_class,
                    absl::string_view inside) {
  return absl::StrCat("<rect x=\"", Coordinate(x), "\" y=\"", Coordinate(y), "\" width=\"",
                      Coordinate(width), "\" height=\"", Coordinate(height), "\" class=\"",
                      css_class, inside.empty() ? "\"/>" : "\">", inside,
                      inside.empty() ? "" : "</rect>");
}

std::string Svg(double width, double height, absl::string_view css_class, absl::string_view label,
                absl::string_view content) {
  const std::string w = Coordinate(width), h = Coordinate(height);
  return absl::StrCat("<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"", css_class,
                      "\" role=\"img\" aria-label=\"", Escaped(label), "\" viewBox=\"0 0 ", w, " ",
                      h, "\" width=\"", w, "\" height=\"", h, "\">", content, "</svg>\n");
}

std::string Section(absl::string_view id, absl::string_view heading, absl::string_view content) {
  return absl::StrCat("<section id=\"", id, "\">\n<h2>", Escaped(heading), "</h2>\n", content,
                      "</section>\n");
}

std::string Note(absl::string_view text) {
  return absl::StrCat("<p class=\"note\">", Escaped(text), "</p>\n");
}

}  // namespace espalier
