// Pieces of the page's markup. It is written so that it is well-formed XML as well as HTML, which
// tests check, and so that no text of a plan can leave its place.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

// `text` as content or as the value of an attribute. Printable first (planner/report/text.h).
std::string Escaped(absl::string_view text);

// Shortened to `columns` and escaped.
std::string EscapedShort(absl::string_view text, size_t columns);

// A coordinate or length: at most two decimals, 0 for what is no number.
std::string Coordinate(double value);

// What the browser shows when the pointer rests on the parent. `text` is plain; '\n' stays a line
// break.
std::string Hover(absl::string_view text);

// What a picture may still spend on names that are shown on hovering only. They are what grows when
// names are long, and the first thing that a page of bounded size can do without.
class HoverBudget {
 public:
  explicit HoverBudget(size_t bytes) : left_(bytes) {}

  // `full` while there is room for it, else `brief`.
  const std::string& Choose(const std::string& full, const std::string& brief);

 private:
  size_t left_;
};

// <text x y class> with escaped content.
std::string SvgText(double x, double y, absl::string_view css_class, absl::string_view text);

// <rect> with class; `inside` (markup, e.g. Hover) may be empty.
std::string SvgRect(double x, double y, double width, double height, absl::string_view css_class,
                    absl::string_view inside);

// <svg> of that size in units of the drawing; it shrinks with the page. `label` is for people who
// hear the page.
std::string Svg(double width, double height, absl::string_view css_class, absl::string_view label,
                absl::string_view content);

// <section> with heading; both of them plain text, `content` markup.
std::string Section(absl::string_view id, absl::string_view heading, absl::string_view content);

// A paragraph in small type that says what a picture leaves out.
std::string Note(absl::string_view text);

}  // namespace espalier
