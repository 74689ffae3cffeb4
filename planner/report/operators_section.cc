// The tables of operators and of layout conversions, as `espalier plan` prints them.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/report/format.h"
#include "planner/report/markup.h"
#include "planner/report/sections.h"

namespace espalier {
namespace {

constexpr size_t kMaxOperatorRows = 300;
constexpr size_t kMaxKinds = 60;
constexpr double kOperatorBarWidth = 120;

std::string OperatorTableRow(const OperatorRow& row, double longest, double total) {
  const double width =
      longest > 0 ? std::clamp(row.seconds / longest, 0.0, 1.0) * kOperatorBarWidth : 0;
  return absl::StrCat(
      "<tr><td>", EscapedShort(row.Name(), 64), "</td><td class=\"one\">", EscapedShort(row.op, 32),
      "</td><td class=\"one\">", EscapedShort(row.split, 40), "</td><td class=\"one\">",
      EscapedShort(row.Devices(), 32), "</td><td class=\"num\">", ReadableCount(row.count()),
      "</td><td class=\"num\">", ReadableSeconds(row.seconds), "</td><td class=\"num\">",
      total > 0 ? ReadablePercent(row.seconds / total) : "", "</td><td>",
      Svg(kOperatorBarWidth, 10, "meter", "share", SvgRect(0, 1, width, 8, "used", "")),
      "</td></tr>\n");
}

}  // namespace

std::string OperatorsSection(const v1::Plan& plan) {
  const std::vector<OperatorRow> rows = GroupOperators(plan);
  double longest = 0, total = 0;
  for (const OperatorRow& row : rows) {
    longest = std::max(longest, row.seconds);
    total += row.seconds;
  }
  std::string content =
      "<div class=\"scroll\"><table>\n<thead><tr><th>node</th><th>operator</th><th>split</th><th>"
      "devices</th><th class=\"num\">count</th><th class=\"num\">time</th><th class=\"num\">share"
      "</th><th></th></tr></thead>\n<tbody>\n";
  for (size_t i = 0; i < std::min(rows.size(), kMaxOperatorRows); ++i) {
    content += OperatorTableRow(rows[i], longest, total);
  }
  content += "</tbody></table></div>\n";
  if (rows.size() > kMaxOperatorRows) {
    double rest = 0;
    for (size_t i = kMaxOperatorRows; i < rows.size(); ++i) rest += rows[i].seconds;
    content +=
        Note(absl::StrCat(rows.size() - kMaxOperatorRows, " more rows, ", ReadableSeconds(rest),
                          " together, are not shown: export the plan to see them."));
  }
  content += Note("Time: forward and backward of the slowest part, summed over the row.");
  return Section("operators", "Operators", content);
}

std::string ChangesSection(const v1::Plan& plan) {
  const auto totals = TotalByKind(plan);
  if (totals.empty()) {
    return Section("changes", "Changes of layout", Note("The plan needs none."));
  }
  std::vector<std::pair<std::string, KindTotal>> rows(totals.begin(), totals.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  std::string content =
      "<div class=\"scroll\"><table>\n<thead><tr><th>kind</th><th class=\"num\">edges</th><th "
      "class=\"num\">bytes per step</th></tr></thead>\n<tbody>\n";
  for (size_t i = 0; i < std::min(rows.size(), kMaxKinds); ++i) {
    absl::StrAppend(&content, "<tr><td>", Escaped(rows[i].first), "</td><td class=\"num\">",
                    ReadableCount(rows[i].second.edges), "</td><td class=\"num\">",
                    ReadableBytes(rows[i].second.bytes), "</td></tr>\n");
  }
  content += "</tbody></table></div>\n";
  if (rows.size() > kMaxKinds) {
    content += Note(absl::StrCat(rows.size() - kMaxKinds, " more kinds move fewer bytes."));
  }
  return Section("changes", "Changes of layout", content);
}

}  // namespace espalier
