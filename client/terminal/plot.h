// A line plot in text: braille dots (2 x 4 per character), or asterisks where there is no Unicode.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace espalier {

struct PlotOptions {
  int width = 72;   // columns of the whole picture, labels included
  int height = 12;  // rows of the drawing
  bool unicode = true;
  std::string title;    // above; empty: none
  std::string x_label;  // below, at the right
};

// `points` in ascending x. Points that are not finite leave a gap. Empty if fewer than two remain.
std::string RenderPlot(const std::vector<std::pair<double, double>>& points,
                       const PlotOptions& options);

}  // namespace espalier
