// A line plot in text: braille dots (2 x 4 per character), or asterisks without Unicode.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace espalier {

struct PlotOptions {
  int width = 72;   // total columns, including labels
  int height = 12;  // rows of the plot area
  bool unicode = true;
  std::string title;    // above; empty: none
  std::string x_label;  // below, at the right
};

// Renders `points`, which ascend in x. Non-finite points leave a gap. Returns "" if fewer than two
// are finite.
std::string RenderPlot(const std::vector<std::pair<double, double>>& points,
                       const PlotOptions& options);

}  // namespace espalier
