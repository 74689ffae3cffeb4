#include "client/cli/history/series.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/history/row_values.h"

namespace espalier {
namespace {

bool IsUsable(const v1::Histogram& histogram) {
  return std::isfinite(histogram.low()) && std::isfinite(histogram.high()) &&
         histogram.counts_size() > 0;
}

// Spreads the counts of a histogram over the rows of a column, in proportion to their overlap.
void AddColumn(const v1::Histogram& histogram, const HeatMap& map, double* column) {
  double total = static_cast<double>(histogram.outside());
  for (const int64_t count : histogram.counts()) total += static_cast<double>(count);
  if (total <= 0) return;
  const double height = (map.high - map.low) / map.rows;
  const double width = (histogram.high() - histogram.low()) / histogram.counts_size();
  for (int i = 0; i < histogram.counts_size(); ++i) {
    const double share = static_cast<double>(histogram.counts(i)) / total;
    if (share <= 0) continue;
    const double from = (histogram.low() + i * width - map.low) / height;
    const double to = from + width / height;
    const int last = std::clamp(static_cast<int>(std::ceil(to)) - 1, 0, map.rows - 1);
    const int first = std::clamp(static_cast<int>(from), 0, last);
    for (int row = first; row <= last; ++row) {
      const double overlap =
          first == last
              ? 1
              : (std::min<double>(to, row + 1) - std::max<double>(from, row)) / (to - from);
      column[row] += share * std::max(overlap, 0.0);
    }
  }
}

}  // namespace

std::string HistorySeries::Title() const {
  return absl::StrCat(run, source == v1::HistoryRow::REPLAY ? ", replay" : "");
}

HistorySeries& SeriesCollector::Of(const v1::HistoryRow& row, const std::string& label) {
  const auto [place, is_new] =
      places_.try_emplace({RunOf(row), label, static_cast<int>(row.source())}, series_.size());
  if (is_new) {
    HistorySeries& made = series_.emplace_back();
    made.run = RunOf(row);
    made.label = label;
    made.source = row.source();
    made.first_step = made.last_step = row.step();
  }
  HistorySeries& series = series_[place->second];
  ++series.rows;
  series.first_step = std::min(series.first_step, row.step());
  series.last_step = std::max(series.last_step, row.step());
  return series;
}

void SeriesCollector::Add(const v1::HistoryRow& row) {
  for (const LabelledNumber& number : NumbersOf(row)) {
    Of(row, number.label).points.emplace_back(static_cast<double>(row.step()), number.value);
  }
  const v1::ProbeValue& value = row.value();
  if (value.has_histogram()) {
    Of(row, LabelOf(row)).histograms.emplace_back(row.step(), value.histogram());
  } else if (value.has_tensor() && !NumberOf(value)) {
    Of(row, LabelOf(row)).other = absl::StrCat(DTypeNameOf(value.tensor()), "[",
                                               absl::StrJoin(value.tensor().dims(), ", "), "]");
  } else if (NumbersOf(row).empty()) {
    Of(row, LabelOf(row)).other = absl::StrCat(value.elements().values_size(), " elements");
  }
}

std::vector<HistorySeries> SeriesCollector::Take() {
  const auto by_step = [](const auto& a, const auto& b) { return a.first < b.first; };
  for (HistorySeries& series : series_) {
    std::stable_sort(series.points.begin(), series.points.end(), by_step);
    std::stable_sort(series.histograms.begin(), series.histograms.end(), by_step);
  }
  places_.clear();
  return std::move(series_);
}

std::vector<std::vector<const HistorySeries*>> ByLabel(const std::vector<HistorySeries>& series) {
  std::map<std::string, size_t> places;
  std::vector<std::vector<const HistorySeries*>> out;
  for (const HistorySeries& one : series) {
    const auto [place, is_new] = places.try_emplace(one.label, out.size());
    if (is_new) out.emplace_back();
    out[place->second].push_back(&one);
  }
  return out;
}

HeatMap MakeHeatMap(const std::vector<std::pair<int64_t, v1::Histogram>>& histograms, int columns,
                    int rows) {
  HeatMap map;
  map.low = INFINITY;
  map.high = -INFINITY;
  for (const auto& [step, histogram] : histograms) {
    if (!IsUsable(histogram)) continue;
    if (map.low > map.high) map.first_step = step;
    map.last_step = step;
    map.low = std::min(map.low, histogram.low());
    map.high = std::max(map.high, histogram.high());
  }
  if (map.low > map.high) return {};
  if (map.low == map.high) {  // all elements are the same
    const double margin = std::max(std::abs(map.low) * 0.5, 1e-6);
    map.low -= margin;
    map.high += margin;
  }
  const auto steps = static_cast<double>(map.last_step - map.first_step) + 1;
  map.columns = static_cast<int>(
      std::min({static_cast<double>(columns), steps, static_cast<double>(histograms.size())}));
  map.rows = rows;
  map.shares.resize(static_cast<size_t>(map.columns) * rows);
  std::vector<int> added(map.columns);
  for (const auto& [step, histogram] : histograms) {
    if (!IsUsable(histogram)) continue;
    const int column = std::min(
        map.columns - 1,
        static_cast<int>(static_cast<double>(step - map.first_step) / steps * map.columns));
    AddColumn(histogram, map, &map.shares[static_cast<size_t>(column) * rows]);
    ++added[column];
  }
  for (int column = 0; column < map.columns; ++column) {
    for (int row = 0; row < rows; ++row) {
      double& share = map.shares[static_cast<size_t>(column) * rows + row];
      if (added[column] > 0) share /= added[column];
      map.most = std::max(map.most, share);
    }
  }
  return map;
}

}  // namespace espalier
