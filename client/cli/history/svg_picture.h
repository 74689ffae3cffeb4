// Parts of a page of pictures in SVG.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/cli/history/series.h"

namespace espalier {

// A picture, at (0, 0) of its own coordinates. `svg` is empty if there is nothing to draw.
struct SvgPicture {
  std::string svg;
  double width = 0, height = 0;
};

// Lines of series of the same label, with axes, title and legend. Numbers that are not finite leave
// gaps, and the title counts them.
SvgPicture DrawLines(const std::vector<const HistorySeries*>& series);

// The histograms of a series: steps from left to right, values from below, darker where more of the
// elements are.
SvgPicture DrawHeatMap(const HistorySeries& series);

// Text as it may stand in XML, also in attributes: markup is escaped, characters that XML does not
// have are replaced.
std::string XmlText(absl::string_view text);

}  // namespace espalier
