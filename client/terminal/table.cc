#include "client/terminal/table.h"

#include <algorithm>
#include <cstdlib>

namespace espalier {

void Table::Row(std::vector<std::string> cells) {
  if (cells.size() > columns_.size()) abort();
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::Render(const Terminal& terminal) const {
  constexpr int kGap = 2;
  constexpr int kNarrowest = 8;
  std::vector<int> widths;
  std::vector<bool> shown;
  int total = -kGap;
  for (size_t c = 0; c < columns_.size(); ++c) {
    const bool filled =
        std::any_of(rows_.begin(), rows_.end(), [&](const auto& row) { return !row[c].empty(); });
    shown.push_back(filled || !columns_[c].optional);
    if (!shown[c]) {
      widths.push_back(0);
      continue;
    }
    int width = DisplayWidth(columns_[c].title);
    for (const auto& row : rows_) width = std::max(width, DisplayWidth(row[c]));
    widths.push_back(width);
    total += width + kGap;
  }
  // A pipe has no width; its reader gets whole cells.
  for (size_t c = 0; terminal.is_tty && c < columns_.size() && total > terminal.width; ++c) {
    if (!columns_[c].shrink) continue;
    const int cut = std::min(total - terminal.width, std::max(0, widths[c] - kNarrowest));
    widths[c] -= cut;
    total -= cut;
  }

  const Style style(terminal);
  std::string out;
  const auto line = [&](auto&& cell) {
    std::string text;
    for (size_t c = 0; c < columns_.size(); ++c) {
      if (!shown[c]) continue;
      if (c > 0) text += std::string(kGap, ' ');
      text += cell(c);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line([&](size_t c) {
    const std::string title = Truncate(columns_[c].title, widths[c], terminal.unicode);
    return Pad(style.Bold(title), widths[c], columns_[c].align);
  });
  line([&](size_t c) {
    std::string rule;
    for (int i = 0; i < widths[c]; ++i) rule += terminal.unicode ? "\u2500" : "-";
    return style.Dim(rule);
  });
  for (const auto& row : rows_) {
    line([&](size_t c) {
      const auto truncate = columns_[c].middle ? TruncateMiddle : Truncate;
      return Pad(truncate(row[c], widths[c], terminal.unicode), widths[c], columns_[c].align);
    });
  }
  return out;
}

}  // namespace espalier
