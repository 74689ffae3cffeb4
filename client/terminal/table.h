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
    bool shrink = false;    // truncated first if the terminal is too narrow
    bool optional = false;  // left out if no row has text in it
    bool middle = false;    // truncated in the middle
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Missing cells are empty. REQUIRES: at most as many cells as columns.
  void Row(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }

  // Returns title line, rule and rows, with two spaces between columns and no trailing spaces.
  std::string Render(const Terminal& terminal) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace espalier
