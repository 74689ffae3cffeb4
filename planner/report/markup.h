// Building blocks of the page's markup. Output is well-formed XML and HTML (tests check this) with
// all text escaped.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

// Escapes `text` for content or an attribute value, after Printable (planner/report/text.h).
std::string Escaped(absl::string_view text);

// Shortened to `columns` and escaped.
std::string EscapedShort(absl::string_view text, size_t columns);

// A coordinate or length: at most two decimals, 0 if not finite.
std::string Coordinate(double value);

// A tooltip of the parent element. `text` is plain; '\n' stays a line break.
std::string Hover(absl::string_view text);

// Limits the bytes of names shown only in tooltips. They grow with the names, and a page of bounded
// size can do without them.
class HoverBudget {
 public:
  explicit HoverBudget(size_t bytes) : left_(bytes) {}

  // Returns `full` while the budget lasts, then `brief`.
  const std::string& Choose(const std::string& full, const std::string& brief);

 private:
  size_t left_;
};

// <text x y class> with escaped content.
std::string SvgText(double x, double y, absl::string_view css_class, absl::string_view text);

// <rect> with class; `inside` (markup, e.g. Hover) may be empty.
std::string SvgRect(double x, double y, double width, double height, absl::string_view css_class,
                    absl::string_view inside);

// <svg> of that size in drawing units; it shrinks with the page. `label` is for screen readers.
std::string Svg(double width, double height, absl::string_view css_class, absl::string_view label,
                absl::string_view content);

// <section> with heading. `id` and `heading` are plain text, `content` is markup.
std::string Section(absl::string_view id, absl::string_view heading, absl::string_view content);

// A small paragraph that says what a drawing omits.
std::string Note(absl::string_view text);

}  // namespace espalier
