// The predicted step as a Gantt chart.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "planner/report/axis.h"
#include "planner/report/format.h"
#include "planner/report/gantt.h"
#include "planner/report/markup.h"
#include "planner/report/sections.h"
#include "planner/report/text.h"

namespace espalier {
namespace {

constexpr double kLeft = 84, kWidth = 1050, kGanttRight = 66;
constexpr double kLaneHeight = 30, kComputeHeight = 14, kCommunicationHeight = 8;
constexpr double kSummaryHeight = 44;
constexpr double kThinnest = 0.3;  // thinner bars would be invisible
constexpr size_t kNameColumns = 48;
constexpr size_t kMaxGanttHoverBytes = 400000;  // per drawing

// By TimelineTask::Kind.
constexpr const char* kClass[kTaskKinds] = {"fwd", "bwd", "rsh", "syn", "upd"};
constexpr const char* kKindName[kTaskKinds] = {"forward", "backward", "change of layout",
                                               "gradient sum", "update"};

std::string BarHover(const GanttBar& bar) {
  const std::string first = Shortened(bar.first->node, kNameColumns);
  std::string text;
  if (bar.tasks == 1) {
    text = absl::StrCat(first, first.empty() ? "" : ", ", kKindName[bar.kind]);
  } else {
    const std::string last = Shortened(bar.last->node, kNameColumns);
    text =
        absl::StrCat(bar.tasks, " tasks, ", first, first == last ? "" : absl::StrCat(" to ", last));
    for (int k = 0; k < kTaskKinds; ++k) {
      if (bar.seconds[k] <= 0) continue;
      absl::StrAppend(&text, "\n", kKindName[k], " ", ReadableSeconds(bar.seconds[k]));
    }
  }
  absl::StrAppend(&text, "\n", ReadableSeconds(bar.busy()), ", from ", ReadableSeconds(bar.begin),
                  " to ", ReadableSeconds(bar.end));
  if (bar.bytes > 0) absl::StrAppend(&text, "\n", ReadableBytes(bar.bytes));
  return Hover(text);
}

std::string DrawBars(const std::vector<GanttBar>& bars, double y, double height, double seconds,
                     HoverBudget* budget) {
  std::string out;
  for (const GanttBar& bar : bars) {
    absl::StrAppend(&out,
                    SvgRect(kLeft + bar.begin / seconds * kWidth, y,
                            std::max(kThinnest, (bar.end - bar.begin) / seconds * kWidth), height,
                            kClass[bar.kind],
                            budget->Choose(BarHover(bar), Hover(ReadableSeconds(bar.busy())))),
                    "\n");
  }
  return out;
}

std::string DrawLane(const GanttLane& lane, double y, double seconds, HoverBudget* budget) {
  return absl::StrCat(
      "<g class=\"lane\">", SvgText(kLeft - 8, y + 17, "end", absl::StrCat("device ", lane.device)),
      SvgRect(kLeft, y + 2, kWidth, kComputeHeight + kCommunicationHeight + 2, "idle", ""), "\n",
      DrawBars(lane.compute, y + 3, kComputeHeight, seconds, budget),
      DrawBars(lane.communication, y + 3 + kComputeHeight, kCommunicationHeight, seconds, budget),
      SvgText(kLeft + kWidth + 6, y + 17, "soft", ReadablePercent(lane.busy / seconds)), "</g>\n");
}

// Shares of all devices, stacked: computing below, communicating above.
std::string Area(const std::vector<double>& base, const std::vector<double>& shares, double y,
                 absl::string_view css_class) {
  const double part = kWidth / static_cast<double>(shares.size());
  auto at = [&](double share) {
    return Coordinate(y + kSummaryHeight * (1 - std::min(1.0, share)));
  };
  std::string top;
  for (size_t i = 0; i < shares.size(); ++i) {
    const std::string right = Coordinate(kLeft + static_cast<double>(i + 1) * part);
    const double low = base.empty() ? 0 : base[i];
    absl::StrAppend(&top, "V", at(low + shares[i]), "H", right);
  }
  // Down on the right, then back along the base from right to left.
  std::string back;
  for (size_t i = shares.size(); i-- > 0;) {
    const double low = base.empty() ? 0 : base[i];
    absl::StrAppend(&back, "V", at(low), "H", Coordinate(kLeft + static_cast<double>(i) * part));
  }
  return absl::StrCat("<path class=\"", css_class, "\" d=\"M", Coordinate(kLeft), " ",
                      at(base.empty() ? 0 : base[0]), top, back, "Z\"/>\n");
}

std::string DrawSummary(const Gantt& gantt, double y) {
  return absl::StrCat("<g class=\"summary\">",
                      Hover(absl::StrCat("share of all ", gantt.lanes.size() + gantt.other_devices,
                                         " devices that compute (below) and communicate (above)")),
                      SvgText(kLeft - 8, y + 26, "end", "all devices"),
                      SvgRect(kLeft, y, kWidth, kSummaryHeight, "idle", ""),
                      Area({}, gantt.computing, y, "fwd"),
                      Area(gantt.computing, gantt.communicating, y, "rsh"), "</g>\n");
}

std::string GanttLegend() {
  std::string out = "<p class=\"legend\">";
  for (int k : {TimelineTask::kForward, TimelineTask::kBackward, TimelineTask::kUpdate,
                TimelineTask::kReshard, TimelineTask::kGradientSync}) {
    absl::StrAppend(&out, "<span><i class=\"", kClass[k], "\"></i>", kKindName[k], "</span>");
  }
  return out +
         "<span><small>upper row: computes, lower row: communicates; at the right: share of the "
         "step in which the device is busy</small></span></p>\n";
}

bool HasMerged(const Gantt& gantt) {
  auto merged = [](const GanttBar& bar) { return bar.tasks > 1; };
  return std::any_of(gantt.lanes.begin(), gantt.lanes.end(), [&](const GanttLane& lane) {
    return std::any_of(lane.compute.begin(), lane.compute.end(), merged) ||
           std::any_of(lane.communication.begin(), lane.communication.end(), merged);
  });
}

}  // namespace

std::string GanttSection(const v1::Plan& plan, const Timeline& timeline) {
  const char* const heading = "The predicted step in time";
  const Gantt gantt = MakeGantt(timeline, plan.devices_size());
  if (timeline.tasks.empty() || gantt.lanes.empty()) {
    return Section("timeline", heading, Note("There is no timeline to show."));
  }
  const double summary = gantt.computing.empty() ? 0 : kSummaryHeight + 12;
  const double height = 4 + summary + kLaneHeight * static_cast<double>(gantt.lanes.size());
  std::string content = TimeAxis({kLeft, 0, kWidth, height}, gantt.seconds);
  if (summary > 0) content += DrawSummary(gantt, 4);
  HoverBudget budget(kMaxGanttHoverBytes);
  double y = 4 + summary;
  for (const GanttLane& lane : gantt.lanes) {
    content += DrawLane(lane, y, gantt.seconds, &budget);
    y += kLaneHeight;
  }
  std::string out = absl::StrCat(GanttLegend(), Svg(kLeft + kWidth + kGanttRight, height + 22,
                                                    "gantt", "Tasks by device and time", content));
  if (gantt.other_devices > 0) {
    out += Note(absl::StrCat("Lanes of the ", gantt.lanes.size(), " busiest devices; the other ",
                             gantt.other_devices, " are busy ",
                             ReadablePercent(gantt.least_busy / gantt.seconds), " to ",
                             ReadablePercent(gantt.most_busy / gantt.seconds), " of the step."));
  }
  if (HasMerged(gantt)) out += Note("Tasks too short to be seen one by one share a bar.");
  if (gantt.left_out > 0) {
    out += Note(absl::StrCat(ReadableCount(gantt.left_out), " tasks are not drawn."));
  }
  return Section("timeline", heading, out);
}

}  // namespace espalier
