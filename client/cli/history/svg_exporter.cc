#include "client/cli/history/svg_exporter.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/history/svg_picture.h"

namespace espalier {
namespace {

constexpr double kMargin = 20, kPageHead = 50, kGap = 26;
constexpr size_t kRunsInTitle = 8;

constexpr char kStyle[] =
    "<style>text{font-family:sans-serif;fill:#222}"
    ".page{font-size:17px;font-weight:bold}.title{font-size:14px;font-weight:bold}"
    ".label,.note{font-size:12px}.note{fill:#666}.tick{font-size:11px;fill:#444}"
    ".grid{stroke:#000;stroke-opacity:.09;fill:none}.frame{fill:none;stroke:#777}"
    ".ground{fill:#fff}.line{fill:none;stroke-width:1.5;stroke-linejoin:round}</style>\n";

}  // namespace

absl::Status SvgExporter::Add(const v1::HistoryRow& row) {
  collector_.Add(row);
  return absl::OkStatus();
}

absl::Status SvgExporter::Finish() {
  const std::vector<HistorySeries> series = collector_.Take();
  std::vector<SvgPicture> pictures;
  const auto add = [&](SvgPicture picture, size_t drawn) {
    if (picture.svg.empty()) {
      left_out_ += static_cast<int64_t>(drawn);
    } else {
      pictures.push_back(std::move(picture));
    }
  };
  std::set<std::string> runs;
  for (const std::vector<const HistorySeries*>& label : ByLabel(series)) {
    std::vector<const HistorySeries*> lines;
    for (const HistorySeries* one : label) {
      runs.insert(one->run);
      if (!one->points.empty()) lines.push_back(one);
    }
    if (!lines.empty()) add(DrawLines(lines), lines.size());
    for (const HistorySeries* one : label) {
      if (one->points.empty()) add(DrawHeatMap(*one), 1);
    }
  }

  double width = 0, height = kPageHead;
  for (const SvgPicture& picture : pictures) {
    width = std::max(width, picture.width);
    height += picture.height + kGap;
  }
  width = std::max(width, 400.0) + 2 * kMargin;
  std::vector<std::string> shown(runs.begin(), runs.end());
  if (shown.size() > kRunsInTitle) {
    shown.resize(kRunsInTitle);
    shown.push_back(absl::StrCat("and ", runs.size() - kRunsInTitle, " more"));
  }
  std::string page = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f "
      "%.0f\">\n%s<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n<text x=\"%.0f\" "
      "y=\"32\" "
      "class=\"page\">%s</text>\n",
      width, height, width, height, kStyle, kMargin,
      pictures.empty() ? "Nothing to draw" : XmlText(absl::StrJoin(shown, ", ")));
  double y = kPageHead;
  for (const SvgPicture& picture : pictures) {
    absl::StrAppendFormat(&page, "<g transform=\"translate(%.0f %.1f)\">\n%s</g>\n", kMargin, y,
                          picture.svg);
    y += picture.height + kGap;
    if (absl::Status s = out_->Write(page); !s.ok()) return s;
    page.clear();
  }
  if (absl::Status s = out_->Write(page + "</svg>\n"); !s.ok()) return s;
  return out_->Finish();
}

std::vector<std::string> SvgExporter::Notes() const {
  if (left_out_ == 0) return {};
  return {absl::StrCat(left_out_, left_out_ == 1 ? " series is" : " series are",
                       " not drawn: tensors, many elements, or nothing finite")};
}

}  // namespace espalier
