#include "client/terminal/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

std::string LineColor(int line) {
  constexpr int kColors[] = {36, 33, 32, 35, 34, 31};
  return absl::StrCat("\x1b[", kColors[line % std::size(kColors)], "m");
}

// A grid of dots, several per character.
class Canvas {
 public:
  Canvas(int columns, int rows, bool unicode)
      : dots_x_(unicode ? 2 : 1),
        dots_y_(unicode ? 4 : 1),
        columns_(columns),
        rows_(rows),
        cells_(static_cast<size_t>(columns) * rows) {}

  int width() const { return columns_ * dots_x_; }
  int height() const { return rows_ * dots_y_; }

  void set_line(int line) { line_ = line; }  // that is drawn now

  void Set(int x, int y) {  // y from the top
    if (x < 0 || y < 0 || x >= width() || y >= height()) return;
    // Braille dot numbering: 1 2 3 down the left side, 4 5 6 down the right, 7 and 8 below.
    static constexpr uint8_t kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    Cell& cell = At(x, y);
    cell.bits |= kBits[y % dots_y_][x % dots_x_];
    cell.line = line_;
  }

  void Mark(int x, int y, char letter) {
    Cell& cell = At(x, y);
    cell.letter = letter;
    cell.line = line_;
  }

  void Line(int x0, int y0, int x1, int y1) {
    const int steps = std::max({std::abs(x1 - x0), std::abs(y1 - y0), 1});
    for (int i = 0; i <= steps; ++i) {
      Set(x0 + static_cast<int>(std::lround(static_cast<double>(x1 - x0) * i / steps)),
          y0 + static_cast<int>(std::lround(static_cast<double>(y1 - y0) * i / steps)));
    }
  }

  std::string Row(int row, bool color) const {
    std::string out;
    int painted = -1;
    const auto paint = [&](int line) {
      if (!color || line == painted) return;
      absl::StrAppend(&out, line < 0 ? "\x1b[0m" : LineColor(line));
      painted = line;
    };
    int columns = columns_;
    const Cell* const cells = &cells_[static_cast<size_t>(row) * columns_];
    while (columns > 0 && cells[columns - 1].bits == 0 && cells[columns - 1].letter == 0) --columns;
    for (int c = 0; c < columns; ++c) {
      const uint8_t bits = cells[c].bits;
      const bool empty = bits == 0 && cells[c].letter == 0;
      paint(empty ? -1 : cells[c].line);
      if (empty) {
        out += ' ';
      } else if (cells[c].letter != 0) {
        out += cells[c].letter;
      } else if (dots_x_ == 1) {
        out += '*';
      } else {  // U+2800 + bits, as UTF-8
        out += '\xE2';
        out += static_cast<char>(0xA0 | bits >> 6);
        out += static_cast<char>(0x80 | (bits & 0x3F));
      }
    }
    paint(-1);
    return out;
  }

 private:
  struct Cell {
    uint8_t bits = 0;
    char letter = 0;
    int line = 0;  // that was drawn there last
  };
  Cell& At(int x, int y) {
    return cells_[static_cast<size_t>(y / dots_y_) * columns_ + x / dots_x_];
  }

  int dots_x_, dots_y_, columns_, rows_, line_ = 0;
  std::vector<Cell> cells_;
};

}  // namespace

std::string RenderPlot(const std::vector<std::pair<double, double>>& points,
                       const PlotOptions& options) {
  return RenderLines({{"", points}}, options);
}

std::string RenderLines(const std::vector<PlotLine>& lines, const PlotOptions& options) {
  double x_min = INFINITY, x_max = -INFINITY, y_min = INFINITY, y_max = -INFINITY;
  int finite = 0;
  for (const PlotLine& line : lines) {
    for (const auto& [x, y] : line.points) {
      if (!std::isfinite(x) || !std::isfinite(y)) continue;
      ++finite;
      x_min = std::min(x_min, x);
      x_max = std::max(x_max, x);
      y_min = std::min(y_min, y);
      y_max = std::max(y_max, y);
    }
  }
  if (finite < 2 || x_max <= x_min) return "";
  if (y_max - y_min <= 1e-12 * std::abs(y_max)) {  // a flat line: centered
    const double margin = y_max == 0 ? 0.5 : std::abs(y_max) * 0.5;
    y_min -= margin;
    y_max += margin;
  }

  const int rows = std::max(options.height, 2);
  const auto label = [&](int row) {
    return FormatLoss(y_max - (y_max - y_min) * row / (rows - 1));
  };
  int margin = 0;
  for (int row = 0; row < rows; ++row) margin = std::max(margin, DisplayWidth(label(row)));
  const int columns = std::max(options.width - margin - 2, 10);

  Canvas canvas(columns, rows, options.unicode);
  const bool several = lines.size() > 1;
  const bool color = several && options.color;
  std::vector<std::pair<int, int>> ends(lines.size(), {-1, -1});
  for (size_t i = 0; i < lines.size(); ++i) {
    canvas.set_line(static_cast<int>(i));
    bool pen = false;
    auto& [last_x, last_y] = ends[i];
    for (const auto& [x, y] : lines[i].points) {
      if (!std::isfinite(x) || !std::isfinite(y)) {
        pen = false;
        continue;
      }
      const int at_x =
          static_cast<int>(std::lround((x - x_min) / (x_max - x_min) * (canvas.width() - 1)));
      const int at_y =
          static_cast<int>(std::lround((y_max - y) / (y_max - y_min) * (canvas.height() - 1)));
      if (pen) {
        canvas.Line(last_x, last_y, at_x, at_y);
      } else {
        canvas.Set(at_x, at_y);
      }
      pen = true;
      last_x = at_x;
      last_y = at_y;
    }
  }
  // Over the lines, so that all of them can be read.
  const auto letter = [](size_t line) { return static_cast<char>('a' + line % 26); };
  for (size_t i = 0; several && i < lines.size(); ++i) {
    canvas.set_line(static_cast<int>(i));
    if (ends[i].first >= 0) canvas.Mark(ends[i].first, ends[i].second, letter(i));
  }

  std::string out;
  if (!options.title.empty())
    absl::StrAppend(&out, std::string(margin + 2, ' '), options.title, "\n");
  for (int row = 0; row < rows; ++row) {
    // Label the first, the last and every third row between.
    const bool labelled = row == 0 || row == rows - 1 || (row % 3 == 0 && row + 2 < rows);
    const char* axis = options.unicode ? (labelled ? "\u2524" : "\u2502") : "|";
    absl::StrAppend(&out, Pad(labelled ? label(row) : "", margin, Align::kRight), " ", axis,
                    canvas.Row(row, color), "\n");
  }
  std::string rule;
  for (int i = 0; i < columns; ++i) rule += options.unicode ? "\u2500" : "-";
  absl::StrAppend(&out, std::string(margin + 1, ' '), options.unicode ? "\u2514" : "+", rule, "\n");
  // Steps are whole numbers; other abscissas need no more than six digits.
  const auto at = [](double x) {
    return x == std::floor(x) ? FormatNumber(x) : absl::StrFormat("%g", x);
  };
  const std::string left = at(x_min);
  const std::string right =
      absl::StrCat(options.x_label, options.x_label.empty() ? "" : " ", at(x_max));
  const int space = columns - DisplayWidth(left) - DisplayWidth(right);
  absl::StrAppend(&out, std::string(margin + 2, ' '), left, std::string(std::max(space, 1), ' '),
                  right, "\n");
  std::string legend;  // of the line that is written now
  const auto end_legend = [&] {
    if (!legend.empty()) absl::StrAppend(&out, std::string(margin + 2, ' '), legend, "\n");
    legend.clear();
  };
  for (size_t i = 0; several && i < lines.size(); ++i) {
    const std::string entry = absl::StrCat(std::string(1, letter(i)), " ", lines[i].name);
    if (!legend.empty() && DisplayWidth(legend) + 2 + DisplayWidth(entry) > columns) end_legend();
    absl::StrAppend(&legend, legend.empty() ? "" : "  ",
                    color ? LineColor(static_cast<int>(i)) : "", entry, color ? "\x1b[0m" : "");
  }
  end_legend();
  return out;
}

}  // namespace espalier
