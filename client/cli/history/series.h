// Values of a history by series, for tables and pictures.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "espalier/v1/probe.pb.h"
#include "espalier/v1/replay.pb.h"

namespace espalier {

// What one run has of one label, recorded or replayed.
struct HistorySeries {
  std::string run;    // "lm@3"
  std::string label;  // LabelledNumber.label
  v1::HistoryRow::Source source = v1::HistoryRow::FORWARD;
  int64_t rows = 0, first_step = 0, last_step = 0;
  // One of these: numbers or histograms by step, or what other values are: "f32[64, 64]".
  std::vector<std::pair<double, double>> points;
  std::vector<std::pair<int64_t, v1::Histogram>> histograms;
  std::string other;

  // "lm@3", "lm@3, replay".
  std::string Title() const;
};

class SeriesCollector {
 public:
  void Add(const v1::HistoryRow& row);
  // In the order of their first rows, each by step.
  std::vector<HistorySeries> Take();

 private:
  HistorySeries& Of(const v1::HistoryRow& row, const std::string& label);

  std::map<std::tuple<std::string, std::string, int>, size_t> places_;  // by run, label, source
  std::vector<HistorySeries> series_;
};

// Series of the same label, in the order of their first ones: what belongs in one picture.
std::vector<std::vector<const HistorySeries*>> ByLabel(const std::vector<HistorySeries>& series);

// How the elements of a tensor are spread at the steps of a series: columns of steps, rows of
// values, each part a mean share of the elements (0 to 1).
struct HeatMap {
  double low = 0, high = 0;               // of the rows
  int64_t first_step = 0, last_step = 0;  // of the columns, which are of equal width
  int columns = 0, rows = 0;
  std::vector<double> shares;  // [column][row], the lowest row first
  double most = 0;             // the largest share
};
// At most `columns` by `rows`. Empty (columns is 0) if no histogram has a finite range.
HeatMap MakeHeatMap(const std::vector<std::pair<int64_t, v1::Histogram>>& histograms, int columns,
                    int rows);

}  // namespace espalier
