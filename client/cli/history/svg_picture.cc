#include "client/cli/history/svg_picture.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/history/svg_axis.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

constexpr double kPlotWidth = 640, kPlotAreaHeight = 220;
constexpr double kLeft = 78, kTop = 34, kRight = 18, kBottom = 44;
constexpr double kLegendLine = 18;
constexpr int kMapColumns = 160, kMapRows = 64;
constexpr int kShades = 32;
constexpr size_t kMostDots = 60;  // of a line whose points are marked

// Told apart also by people who do not see all colors (Okabe and Ito).
const char* const kLineColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                   "#56b4e9", "#8a6d00", "#000000"};

const char* LineColorOf(size_t line) { return kLineColors[line % std::size(kLineColors)]; }

std::string Pixel(double value) { return absl::StrFormat("%.1f", value); }

std::string TextElement(double x, double y, const char* anchor, const char* style,
                        absl::string_view text) {
  return absl::StrCat("<text x=\"", Pixel(x), "\" y=\"", Pixel(y), "\" text-anchor=\"", anchor,
                      "\" class=\"", style, "\">", XmlText(text), "</text>\n");
}

// Title, frame, ticks and labels around an area of kPlotWidth by kPlotAreaHeight.
std::string Frame(const std::string& title, const Axis& x, const Axis& y, const std::string& note) {
  std::string svg = TextElement(kLeft, 20, "start", "title", title);
  const double right = kLeft + kPlotWidth, bottom = kTop + kPlotAreaHeight;
  for (const auto& [value, text] : y.Ticks(5)) {
    const std::string at = Pixel(y.At(value));
    absl::StrAppend(&svg, "<path class=\"grid\" d=\"M", Pixel(kLeft), " ", at, "H", Pixel(right),
                    "\"/>\n", TextElement(kLeft - 6, y.At(value) + 4, "end", "tick", text));
  }
  for (const auto& [value, text] : x.Ticks(8)) {
    const std::string at = Pixel(x.At(value));
    absl::StrAppend(&svg, "<path class=\"grid\" d=\"M", at, " ", Pixel(kTop), "V", Pixel(bottom),
                    "\"/>\n", TextElement(x.At(value), bottom + 16, "middle", "tick", text));
  }
  absl::StrAppend(&svg, "<rect class=\"frame\" x=\"", Pixel(kLeft), "\" y=\"", Pixel(kTop),
                  "\" width=\"", Pixel(kPlotWidth), "\" height=\"", Pixel(kPlotAreaHeight),
                  "\"/>\n",
                  TextElement(kLeft + kPlotWidth / 2, bottom + 34, "middle", "label", "step"));
  if (!note.empty()) absl::StrAppend(&svg, TextElement(right, 20, "end", "note", note));
  return svg;
}

// The points that can be seen: where many share a column of pixels, its first, smallest, largest
// and last one.
std::vector<std::pair<double, double>> Visible(
    const std::vector<std::pair<double, double>>& points) {
  std::vector<std::pair<double, double>> out;
  for (size_t at = 0; at < points.size();) {
    size_t end = at;
    std::pair<double, double> least = points[at], most = points[at];
    while (end < points.size() && std::floor(points[end].first) == std::floor(points[at].first)) {
      if (points[end].second < least.second) least = points[end];
      if (points[end].second > most.second) most = points[end];
      ++end;
    }
    if (end - at <= 4) {
      out.insert(out.end(), points.begin() + static_cast<std::ptrdiff_t>(at),
                 points.begin() + static_cast<std::ptrdiff_t>(end));
    } else {
      if (most.first < least.first) std::swap(least, most);
      out.insert(out.end(), {points[at], least, most, points[end - 1]});
    }
    at = end;
  }
  return out;
}

// Sections of finite points, in pixels.
std::vector<std::vector<std::pair<double, double>>> Sections(const HistorySeries& series,
                                                             const Axis& x, const Axis& y) {
  std::vector<std::vector<std::pair<double, double>>> sections(1);
  for (const auto& [step, value] : series.points) {
    if (std::isfinite(value)) {
      sections.back().emplace_back(x.At(step), y.At(value));
    } else if (!sections.back().empty()) {
      sections.emplace_back();
    }
  }
  return sections;
}

std::string Curve(const HistorySeries& series, const Axis& x, const Axis& y, size_t line) {
  const bool dots = series.points.size() <= kMostDots;
  std::string path, marks;
  for (const auto& section : Sections(series, x, y)) {
    char pen = 'M';
    for (const auto& [at_x, at_y] : Visible(section)) {
      absl::StrAppend(&path, std::string(1, pen), Pixel(at_x), " ", Pixel(at_y));
      pen = 'L';
      // A point between gaps has no line.
      if (dots || section.size() == 1) {
        absl::StrAppend(&marks, "<circle cx=\"", Pixel(at_x), "\" cy=\"", Pixel(at_y),
                        "\" r=\"2.2\" fill=\"", LineColorOf(line), "\"/>\n");
      }
    }
  }
  return absl::StrCat("<path class=\"line\" stroke=\"", LineColorOf(line), "\"",
                      series.source == v1::HistoryRow::REPLAY ? " stroke-dasharray=\"5 3\"" : "",
                      " d=\"", path, "\"/>\n", marks);
}

// Entries below the axis, as many in a line as fit; returns the height.
double Legend(const std::vector<const HistorySeries*>& series, std::string* svg) {
  constexpr double kEntrySpace = 46, kCharacter = 6.6;
  double x = kLeft, y = kTop + kPlotAreaHeight + kBottom + 10;
  for (size_t i = 0; i < series.size(); ++i) {
    const std::string title = series[i]->Title();
    const double width = kEntrySpace + DisplayWidth(title) * kCharacter;
    if (x > kLeft && x + width > kLeft + kPlotWidth) {
      x = kLeft;
      y += kLegendLine;
    }
    absl::StrAppend(svg, "<path class=\"line\" stroke=\"", LineColorOf(i), "\"",
                    series[i]->source == v1::HistoryRow::REPLAY ? " stroke-dasharray=\"5 3\"" : "",
                    " d=\"M", Pixel(x), " ", Pixel(y - 4), "h22\"/>\n",
                    TextElement(x + 27, y, "start", "label", title));
    x += width;
  }
  return y + 8;
}

// White to dark blue.
std::string ShadeColor(int shade) {
  const double part = static_cast<double>(shade) / (kShades - 1);
  const auto channel = [&](double light, double dark) {
    return static_cast<int>(std::lround(light + (dark - light) * part));
  };
  return absl::StrFormat("#%02x%02x%02x", channel(222, 8), channel(235, 29), channel(247, 88));
}

// From 0 (nothing) to kShades. The square root shows the tails, too.
int ShadeOf(const HeatMap& map, int column, int row) {
  const double share = map.shares[static_cast<size_t>(column) * map.rows + row];
  if (share <= 0 || map.most <= 0) return 0;
  return 1 + std::min(kShades - 1, static_cast<int>(std::sqrt(share / map.most) * kShades));
}

std::string Cells(const HeatMap& map) {
  const double width = kPlotWidth / map.columns, height = kPlotAreaHeight / map.rows;
  std::string paths;
  std::vector<std::string> by_shade(kShades + 1);
  for (int column = 0; column < map.columns; ++column) {
    for (int row = 0; row < map.rows;) {
      const int shade = ShadeOf(map, column, row);
      int end = row + 1;
      while (end < map.rows && ShadeOf(map, column, end) == shade) ++end;
      if (shade > 0) {
        // Slightly larger, as browsers leave seams between edges that meet within a pixel.
        absl::StrAppendFormat(&by_shade[shade], "M%.2f %.2fh%.2fv%.2fh%.2fz",
                              kLeft + column * width, kTop + kPlotAreaHeight - end * height,
                              width + 0.2, (end - row) * height + 0.2, -width - 0.2);
      }
      row = end;
    }
  }
  for (int shade = 1; shade <= kShades; ++shade) {
    if (by_shade[shade].empty()) continue;
    absl::StrAppend(&paths, "<path fill=\"", ShadeColor(shade - 1), "\" d=\"", by_shade[shade],
                    "\"/>\n");
  }
  return paths;
}

std::string MapLegend(const HeatMap& map) {
  constexpr double kBar = 160;
  const double y = kTop + kPlotAreaHeight + kBottom + 2;
  std::string svg =
      TextElement(kLeft, y + 9, "start", "label", "part of the elements in a cell: 0");
  const double from = kLeft + 220;
  for (int shade = 0; shade < kShades; ++shade) {
    // As ShadeOf, whose inverse is the square.
    const double begin = std::pow(static_cast<double>(shade) / kShades, 2);
    const double end = std::pow(static_cast<double>(shade + 1) / kShades, 2);
    absl::StrAppendFormat(
        &svg, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"10\" fill=\"%s\"/>\n",
        from + begin * kBar, y, (end - begin) * kBar + 0.2, ShadeColor(shade));
  }
  absl::StrAppend(&svg, TextElement(from + kBar + 6, y + 9, "start", "label",
                                    absl::StrFormat("%.3g", map.most)));
  return svg;
}

}  // namespace

std::string XmlText(absl::string_view text) {
  std::string out;
  for (const char c : Printable(text)) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

SvgPicture DrawLines(const std::vector<const HistorySeries*>& series) {
  double first = INFINITY, last = -INFINITY, low = INFINITY, high = -INFINITY;
  int64_t not_finite = 0;
  for (const HistorySeries* one : series) {
    for (const auto& [step, value] : one->points) {
      if (!std::isfinite(value)) {
        ++not_finite;
        continue;
      }
      first = std::min(first, step);
      last = std::max(last, step);
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  if (first > last) return {};
  const Axis x(first, last, kLeft, kLeft + kPlotWidth, false);
  const double inset = 6;  // the extremes do not lie on the frame
  const Axis y(low, high, kTop + kPlotAreaHeight - inset, kTop + inset, true);
  std::string note = y.logarithmic() ? "logarithmic scale" : "";
  if (not_finite > 0) {
    absl::StrAppend(&note, note.empty() ? "" : ", ", not_finite,
                    not_finite == 1 ? " value is" : " values are", " not finite");
  }
  SvgPicture picture;
  picture.svg = Frame(series.front()->label, x, y, note);
  for (size_t i = 0; i < series.size(); ++i) {
    absl::StrAppend(&picture.svg, Curve(*series[i], x, y, i));
  }
  picture.height = Legend(series, &picture.svg);
  picture.width = kLeft + kPlotWidth + kRight;
  return picture;
}

SvgPicture DrawHeatMap(const HistorySeries& series) {
  const HeatMap map = MakeHeatMap(series.histograms, kMapColumns, kMapRows);
  if (map.columns == 0) return {};
  // A column's label stands at its left edge.
  const Axis x(static_cast<double>(map.first_step), static_cast<double>(map.last_step + 1), kLeft,
               kLeft + kPlotWidth, false);
  const Axis y(map.low, map.high, kTop + kPlotAreaHeight, kTop, false);
  SvgPicture picture;
  picture.svg = absl::StrCat(
      "<rect class=\"ground\" x=\"", Pixel(kLeft), "\" y=\"", Pixel(kTop), "\" width=\"",
      Pixel(kPlotWidth), "\" height=\"", Pixel(kPlotAreaHeight), "\"/>\n", Cells(map),
      Frame(absl::StrCat(series.label, ", ", series.Title()), x, y, ""), MapLegend(map));
  picture.width = kLeft + kPlotWidth + kRight;
  picture.height = kTop + kPlotAreaHeight + kBottom + 20;
  return picture;
}

}  // namespace espalier
