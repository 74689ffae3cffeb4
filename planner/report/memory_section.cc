// Memory of the devices over the predicted step.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/report/axis.h"
#include "planner/report/format.h"
#include "planner/report/machine_views.h"
#include "planner/report/markup.h"
#include "planner/report/sections.h"

namespace espalier {
namespace {

constexpr Frame kFrame = {84, 12, 1050, 280};
constexpr double kMemoryRight = 66;
constexpr size_t kMaxCurves = 16;
constexpr int kParts = 300;  // intervals to which longer curves are thinned
constexpr size_t kMaxLimits = 4;

// Devices with equal memory share a curve, as in most plans.
struct PlottedCurve {
  std::vector<int> devices;
  const MemoryCurve* data = nullptr;
  size_t points = 0;
  int64_t peak = 0;
  double peak_seconds = 0;

  std::string Name() const {
    return absl::StrCat(devices.size() == 1 ? "device " : "devices ", NumberRanges(devices));
  }
};

// The highest first.
std::vector<PlottedCurve> CurvesOf(const Timeline& timeline) {
  using Key = std::pair<std::vector<double>, std::vector<int64_t>>;
  std::vector<PlottedCurve> curves;
  std::map<Key, size_t> index;
  for (size_t d = 0; d < timeline.memory.size(); ++d) {
    const MemoryCurve& memory = timeline.memory[d];
    const size_t points = std::min(memory.seconds.size(), memory.bytes.size());
    const bool sound = std::is_sorted(memory.seconds.begin(), memory.seconds.end()) &&
                       std::all_of(memory.seconds.begin(), memory.seconds.end(),
                                   [](double s) { return std::isfinite(s) && s >= 0; });
    if (points == 0 || !sound) continue;
    const auto [it, inserted] = index.try_emplace(Key{memory.seconds, memory.bytes}, curves.size());
    if (inserted) {
      const auto peak = std::max_element(memory.bytes.begin(), memory.bytes.begin() + points);
      curves.push_back({{}, &memory, points, *peak, memory.seconds[peak - memory.bytes.begin()]});
    }
    curves[it->second].devices.push_back(static_cast<int>(d));
  }
  std::stable_sort(curves.begin(), curves.end(),
                   [](const PlottedCurve& a, const PlottedCurve& b) { return a.peak > b.peak; });
  return curves;
}

struct Scale {
  double seconds = 0;
  double bytes = 0;
  double X(double s) const { return kFrame.left + kFrame.width * s / seconds; }
  double Y(double b) const { return kFrame.top + kFrame.height * (1 - std::max(0.0, b) / bytes); }
};

// A long curve shows the maximum of each interval, because the peak matters.
std::string PathOf(const PlottedCurve& curve, const Scale& scale) {
  std::string path;
  auto to = [&](double seconds, int64_t bytes) {
    const std::string x = Coordinate(scale.X(seconds)), y = Coordinate(scale.Y(bytes));
    absl::StrAppend(&path,
                    path.empty() ? absl::StrCat("M", x, " ", y) : absl::StrCat("H", x, "V", y));
  };
  const MemoryCurve& data = *curve.data;
  if (curve.points <= 2 * kParts) {
    for (size_t i = 0; i < curve.points; ++i) to(data.seconds[i], data.bytes[i]);
  } else {
    int64_t before = data.bytes[0];
    size_t i = 0;
    for (int part = 0; part < kParts; ++part) {
      const double begin = scale.seconds * part / kParts, end = scale.seconds * (part + 1) / kParts;
      int64_t highest = before;
      for (; i < curve.points && (data.seconds[i] < end || part == kParts - 1); ++i) {
        highest = std::max(highest, data.bytes[i]);
        before = data.bytes[i];
      }
      to(begin, highest);
    }
  }
  return absl::StrCat(path, "H", Coordinate(kFrame.left + kFrame.width));
}

std::string DrawCurve(const PlottedCurve& curve, int index, const Scale& scale) {
  return absl::StrCat("<g style=\"--h:", Hue(index), "\"><path class=\"curve",
                      index == 0 ? " highest" : "", "\" d=\"", PathOf(curve, scale), "\">",
                      Hover(absl::StrCat(curve.Name().substr(0, 200), "\npeak ",
                                         ReadableBytes(static_cast<double>(curve.peak)), " at ",
                                         ReadableSeconds(curve.peak_seconds))),
                      "</path><circle class=\"peak\" cx=\"",
                      Coordinate(scale.X(curve.peak_seconds)), "\" cy=\"",
                      Coordinate(scale.Y(static_cast<double>(curve.peak))), "\" r=\"4\"/></g>\n");
}

// Next to the peak, on the side with more space.
std::string PeakLabel(const PlottedCurve& curve, const Scale& scale) {
  const double x = scale.X(curve.peak_seconds);
  const bool left = x > kFrame.left + kFrame.width * 0.6;
  return SvgText(x + (left ? -8 : 8), scale.Y(static_cast<double>(curve.peak)) - 6,
                 left ? "strong end" : "strong",
                 absl::StrCat("peak ", ReadableBytes(static_cast<double>(curve.peak))));
}

// The limits of the devices. Limits far above the curves would flatten them and are given as text
// only.
std::string DrawLimits(const std::set<int64_t>& limits, const Scale& scale) {
  std::string out;
  for (int64_t limit : limits) {
    const double bytes = static_cast<double>(limit);
    const std::string text = absl::StrCat("limit ", ReadableBytes(bytes));
    if (bytes > scale.bytes) {
      out += SvgText(kFrame.left + kFrame.width - 4, kFrame.top + 12, "end soft",
                     absl::StrCat(text, ", above this picture"));
      break;
    }
    const double y = scale.Y(bytes);
    absl::StrAppend(&out, "<path class=\"limit\" d=\"M", Coordinate(kFrame.left), " ",
                    Coordinate(y), "H", Coordinate(kFrame.left + kFrame.width), "\"/>",
                    SvgText(kFrame.left + kFrame.width - 4, y - 5, "end limit-text", text));
  }
  return out + "\n";
}

std::string MemoryLegend(const std::vector<PlottedCurve>& curves) {
  std::string out = "<p class=\"legend\">";
  for (size_t i = 0; i < curves.size(); ++i) {
    absl::StrAppend(&out, "<span><i class=\"curve\" style=\"--h:", Hue(static_cast<int>(i)),
                    "\"></i>", EscapedShort(curves[i].Name(), 60), " <small>peak ",
                    ReadableBytes(static_cast<double>(curves[i].peak)), " at ",
                    ReadableSeconds(curves[i].peak_seconds), "</small></span>");
  }
  return out + "</p>\n";
}

}  // namespace

std::string MemorySection(const Timeline& timeline) {
  const char* const heading = "Memory over the step";
  std::vector<PlottedCurve> curves = CurvesOf(timeline);
  if (curves.empty()) return Section("memory", heading, Note("There is no memory curve to show."));
  const size_t all = curves.size();
  if (all > kMaxCurves) curves.resize(kMaxCurves);

  Scale scale;
  scale.seconds = std::isfinite(timeline.seconds) ? timeline.seconds : 0;
  std::set<int64_t> limits;
  for (const PlottedCurve& curve : curves) {
    scale.seconds = std::max(scale.seconds, curve.data->seconds[curve.points - 1]);
    if (curve.data->limit > 0 && limits.size() < kMaxLimits) limits.insert(curve.data->limit);
  }
  if (!(scale.seconds > 0)) scale.seconds = 1;
  const double peak = std::max(1.0, static_cast<double>(curves[0].peak));
  scale.bytes = peak * 1.15;
  for (int64_t limit : limits) {
    if (static_cast<double>(limit) <= 3 * peak) {
      scale.bytes = std::max(scale.bytes, static_cast<double>(limit) * 1.08);
    }
  }

  std::string content = TimeAxis(kFrame, scale.seconds) + ByteAxis(kFrame, scale.bytes);
  for (size_t i = curves.size(); i-- > 0;) {
    content += DrawCurve(curves[i], static_cast<int>(i), scale);
  }
  absl::StrAppend(&content, DrawLimits(limits, scale), PeakLabel(curves[0], scale));
  std::string out =
      absl::StrCat(MemoryLegend(curves),
                   Svg(kFrame.left + kFrame.width + kMemoryRight, kFrame.top + kFrame.height + 24,
                       "memory", "Memory by device and time", content));
  if (all > kMaxCurves) {
    out += Note(absl::StrCat("The ", kMaxCurves, " curves with the highest peaks; ",
                             all - kMaxCurves, " more stay below them."));
  }
  return Section("memory", heading, out);
}

}  // namespace espalier
