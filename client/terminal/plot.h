// Line plots in text: braille dots (2 x 4 per character), or asterisks without Unicode.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace espalier {

struct PlotLine {
  std::string name;
  std::vector<std::pair<double, double>> points;  // ascend in x
};

struct PlotOptions {
  int width = 72;   // total columns, including labels
  int height = 12;  // rows of the plot area
  bool unicode = true;
  bool color = false;   // of the lines, if there are several
  std::string title;    // above; empty: none
  std::string x_label;  // below, at the right
};

// Renders `points`, which ascend in x. Non-finite points leave a gap. Returns "" if fewer than two
// are finite.
std::string RenderPlot(const std::vector<std::pair<double, double>>& points,
                       const PlotOptions& options);
// Several lines in one plot. The last point of each is marked by a letter, which the legend below
// explains: "a lm@1  b lm@2".
std::string RenderLines(const std::vector<PlotLine>& lines, const PlotOptions& options);

}  // namespace espalier
