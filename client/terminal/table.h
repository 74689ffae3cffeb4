// Tables of text with aligned columns.
#pragma once

#include <string>
#include <vector>

#include "client/terminal/terminal.h"
#include "client/terminal/text.h"

namespace espalier {

class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::kLeft;
    bool shrink = false;  // cut first where the terminal is too narrow
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Cells that are missing are empty; more cells than columns is a programmer error.
  void Row(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }

  // Title line, rule and rows, two spaces between columns, no spaces at line ends.
  std::string Render(const Terminal& terminal) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace espalier
