// Link utilization per step.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/report/format.h"
#include "planner/report/markup.h"
#include "planner/report/sections.h"

namespace espalier {
namespace {

constexpr size_t kMaxLinkRows = 32;
constexpr double kLinkBarWidth = 220;

struct LinkRow {
  const LinkTraffic* link;
  double utilization = -1;  // -1: the bandwidth is not known
};

double Finite(double value) { return std::isfinite(value) && value > 0 ? value : 0; }

// The most utilized first; ties keep the timeline's order.
std::vector<LinkRow> RowsOf(const Timeline& timeline, double seconds) {
  std::vector<LinkRow> rows;
  for (const LinkTraffic& link : timeline.links) {
    const double could = Finite(link.bandwidth) * seconds;
    rows.push_back({&link, could > 0 ? Finite(link.bytes) / could : -1});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const LinkRow& a, const LinkRow& b) {
    if (a.utilization != b.utilization) return a.utilization > b.utilization;
    return Finite(a.link->bytes) > Finite(b.link->bytes);
  });
  return rows;
}

std::string LinkTableRow(const LinkRow& row) {
  const double shown = std::clamp(row.utilization, 0.0, 1.0);
  const std::string percent = row.utilization < 0 ? "unknown" : ReadablePercent(row.utilization);
  return absl::StrCat(
      "<tr><td>", EscapedShort(row.link->name, 60), "</td><td class=\"num\">",
      ReadableBytes(row.link->bytes), "</td><td class=\"num\">",
      row.link->bandwidth > 0 ? absl::StrCat(ReadableBytes(row.link->bandwidth), "/s") : "unknown",
      "</td><td class=\"num\">", percent, "</td><td>",
      Svg(kLinkBarWidth, 12, "meter", absl::StrCat("utilization ", percent),
          absl::StrCat(SvgRect(0, 1, kLinkBarWidth, 10, "idle", ""),
                       SvgRect(0, 1, kLinkBarWidth * shown, 10,
                               row.utilization > 0.8 ? "used much" : "used", ""))),
      "</td></tr>\n");
}

}  // namespace

std::string LinksSection(const v1::Plan& plan, const Timeline& timeline) {
  const char* const heading = "Bytes per link";
  const double seconds =
      Finite(timeline.seconds) > 0 ? timeline.seconds : Finite(plan.prediction().step_seconds());
  const std::vector<LinkRow> rows = RowsOf(timeline, seconds);
  if (rows.empty()) return Section("links", heading, Note("There is no traffic to show."));
  std::string content =
      "<div class=\"scroll\"><table>\n<thead><tr><th>link</th><th class=\"num\">per step</th><th "
      "class=\"num\">bandwidth</th><th class=\"num\">utilization</th><th></th></tr></thead>\n"
      "<tbody>\n";
  for (size_t i = 0; i < std::min(rows.size(), kMaxLinkRows); ++i) content += LinkTableRow(rows[i]);
  content += "</tbody></table></div>\n";
  if (rows.size() > kMaxLinkRows) {
    double rest = 0;
    for (size_t i = kMaxLinkRows; i < rows.size(); ++i) rest += Finite(rows[i].link->bytes);
    content += Note(absl::StrCat("The ", rows.size() - kMaxLinkRows, " other links carry ",
                                 ReadableBytes(rest), " and are used less."));
  }
  content += Note(absl::StrCat("Utilisation: bytes of the step over what the link could carry in ",
                               ReadableSeconds(seconds), "."));
  return Section("links", heading, content);
}

}  // namespace espalier
