// The alternatives: why they lost, and by how much.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/report/format.h"
#include "planner/report/markup.h"
#include "planner/report/sections.h"
#include "planner/report/text.h"

namespace espalier {
namespace {

constexpr int kMaxShown = 24;
constexpr double kBarLeft = 190, kAlternativeBarWidth = 640, kRowHeight = 34, kChartWidth = 1040;

struct Entry {
  std::string name;
  const v1::Prediction* prediction;
  std::string refused;  // human-readable
  bool chosen = false;
};

// Says "does not fit: device 0 needs 12.1 GiB, has 8.0 GiB (and 3 more devices)", or the planner's
// text if the numbers do not show it.
std::string WhyRefused(const v1::Plan& plan, const v1::Alternative& alternative) {
  if (alternative.refused().empty()) return "";
  const auto& peaks = alternative.prediction().peak_bytes();
  int first = -1, more = 0;
  for (int d = 0; d < std::min(peaks.size(), plan.devices_size()); ++d) {
    const int64_t memory = plan.devices(d).memory_bytes();
    if (memory <= 0 || peaks[d] <= memory) continue;
    if (first < 0) {
      first = d;
    } else {
      ++more;
    }
  }
  if (first < 0) return absl::StrCat("cannot run: ", alternative.refused());
  std::string text =
      absl::StrFormat("does not fit: device %d needs %s, has %s", first,
                      ReadableBytes(static_cast<double>(peaks[first])),
                      ReadableBytes(static_cast<double>(plan.devices(first).memory_bytes())));
  if (more > 0)
    absl::StrAppend(&text, " (and ", more, more == 1 ? " more device)" : " more devices)");
  return text;
}

std::string Ratio(const Entry& entry, const v1::Prediction& own) {
  if (!(own.step_seconds() > 0)) return "";
  return absl::StrFormat("%.2f×", entry.prediction->step_seconds() / own.step_seconds());
}

std::string Verdict(const Entry& entry, const v1::Prediction& own) {
  if (entry.chosen) return "chosen";
  if (!entry.refused.empty()) return entry.refused;
  const double step = entry.prediction->step_seconds() - own.step_seconds();
  if (step == 0) return "as fast";
  const double compute = entry.prediction->compute_seconds() - own.compute_seconds();
  const double communication =
      entry.prediction->communication_seconds() - own.communication_seconds();
  return absl::StrCat(step > 0 ? "slower by " : "faster by ", ReadableSeconds(std::abs(step)),
                      ": compute ", SignedSeconds(compute), ", communication ",
                      SignedSeconds(communication));
}

std::string AlternativeTableRow(const Entry& entry, const v1::Prediction& own) {
  const v1::Prediction& p = *entry.prediction;
  return absl::StrCat(
      entry.chosen ? "<tr class=\"chosen\">" : "<tr>", "<td>", EscapedShort(entry.name, 60),
      "</td><td class=\"num\">", ReadableSeconds(p.step_seconds()), "</td><td class=\"num\">",
      Ratio(entry, own), "</td><td class=\"num\">", ReadableSeconds(p.compute_seconds()),
      "</td><td class=\"num\">", ReadableSeconds(p.communication_seconds()),
      "</td><td class=\"num\">", ReadableBytes(p.bytes_moved()), "</td><td class=\"num\">",
      ReadableBytes(static_cast<double>(PeakBytes(p))), "</td><td class=\"wide\">",
      EscapedShort(Verdict(entry, own), 300), "</td></tr>\n");
}

// The step as a pale bar, overlaid with the busiest device's computing and communication.
std::string ChartRow(const Entry& entry, const v1::Prediction& own, double y, double scale) {
  const v1::Prediction& p = *entry.prediction;
  auto width = [&](double seconds) {
    return std::clamp(seconds * scale, 0.0, kAlternativeBarWidth);
  };
  const double step = width(p.step_seconds());
  std::string text = ReadableSeconds(p.step_seconds());
  if (!entry.refused.empty()) {
    absl::StrAppend(&text, ", cannot run");
  } else if (!entry.chosen) {
    absl::StrAppend(&text, ", ", Ratio(entry, own));
  }
  const std::string hover =
      Hover(absl::StrCat(Shortened(entry.name, 60), "\nstep ", ReadableSeconds(p.step_seconds()),
                         "\ncompute ", ReadableSeconds(p.compute_seconds()), "\ncommunication ",
                         ReadableSeconds(p.communication_seconds())));
  return absl::StrCat(
      "<g>", hover,
      absl::StrCat("<text x=\"", Coordinate(kBarLeft - 10), "\" y=\"", Coordinate(y + 19),
                   "\" class=\"end", entry.chosen ? " strong" : "", "\">",
                   EscapedShort(entry.name, 26), "</text>"),
      SvgRect(kBarLeft, y + 3, step, 22, entry.refused.empty() ? "step" : "step refused", ""),
      SvgRect(kBarLeft, y + 6, width(p.compute_seconds()), 8, "fwd", ""),
      SvgRect(kBarLeft, y + 14, width(p.communication_seconds()), 8, "rsh", ""),
      SvgText(kBarLeft + step + 8, y + 19, entry.chosen ? "strong" : "", text), "</g>\n");
}

std::string Chart(const std::vector<Entry>& entries, const v1::Prediction& own) {
  double longest = 0;
  for (const Entry& r : entries) longest = std::max(longest, r.prediction->step_seconds());
  if (!(longest > 0)) return "";
  std::string content;
  double y = 0;
  for (const Entry& entry : entries) {
    content += ChartRow(entry, own, y, kAlternativeBarWidth / longest);
    y += kRowHeight;
  }
  return absl::StrCat(
      Svg(kChartWidth, y, "bars", "Step time of the plan and of the alternatives", content),
      "<p class=\"legend\"><span><i class=\"step\"></i>step</span><span><i class=\"fwd\"></i>"
      "compute, busiest device</span><span><i class=\"rsh\"></i>communication, busiest "
      "device</span></p>\n");
}

}  // namespace

std::string AlternativesSection(const v1::Plan& plan) {
  const v1::Prediction& own = plan.prediction();
  std::vector<Entry> entries = {{"this plan", &own, "", true}};
  for (const v1::Alternative& alternative : plan.alternatives()) {
    if (static_cast<int>(entries.size()) > kMaxShown) break;
    entries.push_back(
        {alternative.name(), &alternative.prediction(), WhyRefused(plan, alternative)});
  }
  std::string content = Chart(entries, own);
  absl::StrAppend(
      &content,
      "<div class=\"scroll\"><table>\n<thead><tr><th>plan</th><th class=\"num\">step</th>"
      "<th class=\"num\">ratio</th><th class=\"num\">compute</th><th class=\"num\">"
      "communication</th><th class=\"num\">moved</th><th class=\"num\">memory</th>"
      "<th>verdict</th></tr></thead>\n<tbody>\n");
  for (const Entry& entry : entries) content += AlternativeTableRow(entry, own);
  absl::StrAppend(&content, "</tbody></table></div>\n");
  if (entries.size() == 1) content += Note("No alternatives were recorded with this plan.");
  const int more = plan.alternatives_size() + 1 - static_cast<int>(entries.size());
  if (more > 0) content += Note(absl::StrCat(more, " more alternatives are not shown."));
  return Section("alternatives", "Against the alternatives", content);
}

}  // namespace espalier
