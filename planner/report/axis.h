// Axes of the page's charts.
#pragma once

#include <string>

namespace espalier {

// The inner part of a chart, in units of the drawing.
struct Frame {
  double left = 0, top = 0, width = 0, height = 0;
};

// Distance of the marks on an axis from 0 to `limit`, of which there are at most `most` besides 0:
// 1, 2 or 5 times a power of ten; a power of two for bytes.
double TickStep(double limit, int most);
double ByteTickStep(double limit, int most);

// Grid lines and marks of a horizontal axis of `seconds`, a vertical one of `bytes`; nothing for
// what is not positive.
std::string TimeAxis(const Frame& frame, double seconds);
std::string ByteAxis(const Frame& frame, double bytes);

}  // namespace espalier
