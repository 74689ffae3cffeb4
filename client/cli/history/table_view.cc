#include "client/cli/history/table_view.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/terminal/plot.h"
#include "client/terminal/table.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

constexpr size_t kMostPlots = 6;
constexpr int kPlotHeight = 8;
constexpr size_t kMostLines = 12;  // in one plot

std::string StepsText(const HistorySeries& series) {
  const std::string rows = absl::StrCat(" (", series.rows, ")");
  if (series.first_step == series.last_step) return absl::StrCat(series.first_step, rows);
  return absl::StrCat(series.first_step, " to ", series.last_step, rows);
}

// The smallest and the largest number that is one.
std::optional<std::pair<double, double>> RangeOf(const HistorySeries& series) {
  std::optional<std::pair<double, double>> range;
  for (const auto& [step, value] : series.points) {
    if (std::isnan(value)) continue;
    if (!range) range = {value, value};
    range->first = std::min(range->first, value);
    range->second = std::max(range->second, value);
  }
  return range;
}

std::string MapPlot(const HistorySeries& series, const Terminal& terminal) {
  const auto label = [](double value) { return FormatLoss(value); };
  HeatMap map = MakeHeatMap(series.histograms, 1, kPlotHeight);
  if (map.columns == 0) return "";
  const int margin = std::max(DisplayWidth(label(map.low)), DisplayWidth(label(map.high)));
  const int width = std::max(terminal.width - 1 - margin - 2, 10);
  map = MakeHeatMap(series.histograms, width, kPlotHeight);
  const std::vector<std::string> shades =
      terminal.unicode ? std::vector<std::string>{" ", "\u2591", "\u2592", "\u2593", "\u2588"}
                       : std::vector<std::string>{" ", ".", "+", "*", "#"};
  std::string out;
  for (int row = map.rows - 1; row >= 0; --row) {
    const std::string text = row == map.rows - 1 ? label(map.high) : row == 0 ? label(map.low) : "";
    std::string line;
    // Few columns are drawn wide.
    for (int x = 0; x < width; ++x) {
      const double share =
          map.shares[static_cast<size_t>(x * map.columns / width) * map.rows + row];
      const int shade =
          share <= 0 ? 0 : 1 + std::min(3, static_cast<int>(std::sqrt(share / map.most) * 4));
      line += shades[shade];
    }
    absl::StrAppend(&out, Pad(text, margin, Align::kRight), " ", terminal.unicode ? "\u2502" : "|",
                    line, "\n");
  }
  const std::string first = absl::StrCat(map.first_step);
  const std::string last = absl::StrCat("step ", map.last_step);
  const int space = width - DisplayWidth(first) - DisplayWidth(last);
  absl::StrAppend(&out, std::string(margin + 2, ' '), first, std::string(std::max(space, 1), ' '),
                  last, "\n");
  return out;
}

std::string LinePlot(const std::vector<const HistorySeries*>& series, const Terminal& terminal) {
  std::vector<PlotLine> lines;
  for (const HistorySeries* one : series) {
    if (!one->points.empty() && lines.size() < kMostLines) {
      lines.push_back({Printable(one->Title()), one->points});
    }
  }
  PlotOptions options;
  options.width = terminal.width - 1;
  options.height = kPlotHeight;
  options.unicode = terminal.unicode;
  options.color = terminal.color;
  options.x_label = "step";
  std::string out = RenderLines(lines, options);
  if (!out.empty() && lines.size() < series.size()) {
    absl::StrAppend(&out, series.size() - lines.size(), " more runs are not drawn\n");
  }
  return out;
}

}  // namespace

std::string RenderHistoryTable(const std::vector<HistorySeries>& series, const Terminal& terminal) {
  Table table({{"run"},
               {.title = "name", .shrink = true, .middle = true},
               {"source"},
               {"steps", Align::kRight},
               {"first", Align::kRight},
               {"last", Align::kRight},
               {"min", Align::kRight},
               {"max", Align::kRight}});
  for (const HistorySeries& one : series) {
    std::string first = one.other, last, least, most;
    if (!one.points.empty()) {
      first = FormatLoss(one.points.front().second);
      last = FormatLoss(one.points.back().second);
      const auto range = RangeOf(one);
      least = FormatLoss(range ? range->first : NAN);
      most = FormatLoss(range ? range->second : NAN);
    } else if (!one.histograms.empty()) {
      first = absl::StrCat(one.histograms.back().second.counts_size(), " ranges");
      double low = INFINITY, high = -INFINITY;
      for (const auto& [step, histogram] : one.histograms) {
        low = std::min(low, histogram.low());
        high = std::max(high, histogram.high());
      }
      least = FormatLoss(low);
      most = FormatLoss(high);
    }
    table.Row({Printable(one.run), Printable(one.label),
               one.source == v1::HistoryRow::REPLAY ? "replay" : "forward", StepsText(one), first,
               last, least, most});
  }
  return table.Render(terminal);
}

std::string RenderHistoryPlots(const std::vector<HistorySeries>& series, const Terminal& terminal) {
  const Style style(terminal);
  std::string out;
  size_t plots = 0, not_drawn = 0;
  const auto add = [&](const std::string& title, const std::string& plot) {
    if (plot.empty()) return;
    if (plots == kMostPlots) {
      ++not_drawn;
      return;
    }
    ++plots;
    absl::StrAppend(&out, "\n", style.Bold(title), "\n", plot);
  };
  for (const std::vector<const HistorySeries*>& one : ByLabel(series)) {
    const std::string label = Printable(one.front()->label);
    const std::string title =
        one.size() == 1 ? absl::StrCat(label, ", ", Printable(one.front()->Title())) : label;
    add(title, LinePlot(one, terminal));
    for (const HistorySeries* map : one) {
      if (map->histograms.empty()) continue;
      add(absl::StrCat(label, ", ", Printable(map->Title())), MapPlot(*map, terminal));
    }
  }
  if (not_drawn > 0) {
    absl::StrAppend(&out, "\n", not_drawn,
                    " more plots are not shown; choose names by --log=PATTERN, or --svg=FILE "
                    "draws all\n");
  }
  return out;
}

}  // namespace espalier
