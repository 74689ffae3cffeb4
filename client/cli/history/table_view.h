// Histories in the terminal.
#pragma once

#include <string>
#include <vector>

#include "client/cli/history/series.h"
#include "client/terminal/terminal.h"

namespace espalier {

// A table with a row for each series.
std::string RenderHistoryTable(const std::vector<HistorySeries>& series, const Terminal& terminal);

// A plot for each of the first labels, with a line for each run that has it, and a line of text
// about the labels that are not shown. Histograms are plotted as a map of steps and values.
std::string RenderHistoryPlots(const std::vector<HistorySeries>& series, const Terminal& terminal);

}  // namespace espalier
