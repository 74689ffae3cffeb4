#include "planner/report/axis.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/report/markup.h"

namespace espalier {
namespace {

std::string GridLine(double x0, double y0, double x1, double y1) {
  return absl::StrCat("<path class=\"grid\" d=\"M", Coordinate(x0), " ", Coordinate(y0), "L",
                      Coordinate(x1), " ", Coordinate(y1), "\"/>");
}

}  // namespace

double TickStep(double limit, int most) {
  if (!(limit > 0) || !std::isfinite(limit)) return 1;
  const double least = limit / most;
  double step = std::pow(10.0, std::floor(std::log10(least)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (step * factor >= least) return step * factor;
  }
  return step * 10;
}

double ByteTickStep(double limit, int most) {
  double step = 1;
  while (std::isfinite(limit) && step * most < limit) step *= 2;
  return step;
}

std::string TimeAxis(const Frame& frame, double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds)) return "";
  const double unit = seconds >= 1 ? 1 : seconds >= 1e-3 ? 1e-3 : 1e-6;
  const char* const name = unit == 1 ? "s" : unit == 1e-3 ? "ms" : "us";
  const double step = TickStep(seconds, 10);
  std::string out;
  for (int i = 0; i * step <= seconds * (1 + 1e-9); ++i) {
    const double x = frame.left + i * step / seconds * frame.width;
    absl::StrAppend(&out, GridLine(x, frame.top, x, frame.top + frame.height),
                    SvgText(x, frame.top + frame.height + 15, "tick mid",
                            absl::StrFormat("%g %s", i * step / unit, name)));
  }
  return out + "\n";
}

std::string ByteAxis(const Frame& frame, double bytes) {
  if (!(bytes > 0) || !std::isfinite(bytes)) return "";
  const double step = ByteTickStep(bytes, 6);
  // One unit for all labels, with as many digits as needed: 0.25 GiB and 1.25 GiB.
  double unit = 1;
  std::string name = "B";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB", "PiB"}) {
    if (bytes < unit * 1024) break;
    unit *= 1024;
    name = next;
  }
  std::string out;
  for (int i = 0; i * step <= bytes * (1 + 1e-9); ++i) {
    const double y = frame.top + frame.height * (1 - i * step / bytes);
    absl::StrAppend(&out, GridLine(frame.left, y, frame.left + frame.width, y),
                    SvgText(frame.left - 8, y + 4, "tick end",
                            absl::StrFormat("%g %s", i * step / unit, name)));
  }
  return out + "\n";
}

}  // namespace espalier
