// Chart axes of the HTML report.
#pragma once

#include <string>

namespace espalier {

// The plot area of a chart, in drawing units.
struct Frame {
  double left = 0, top = 0, width = 0, height = 0;
};

// Distance between ticks on an axis from 0 to `limit` with at most `most` ticks besides 0: 1, 2 or
// 5 times a power of ten; for bytes a power of two.
double TickStep(double limit, int most);
double ByteTickStep(double limit, int most);

// Grid lines and labels of a horizontal axis of `seconds` or a vertical one of `bytes`; empty if
// the value is not positive.
std::string TimeAxis(const Frame& frame, double seconds);
std::string ByteAxis(const Frame& frame, double bytes);

}  // namespace espalier
