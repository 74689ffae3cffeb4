// The results of a benchmark as Markdown tables and JSON.
#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace espalier {

struct Cell {
  std::string text;
  nlohmann::ordered_json value;
};
Cell Text(const std::string& text);
Cell Number(double value, int digits);

class Report {
 public:
  explicit Report(std::string name) : name_(std::move(name)) {}

  // Begins a table. Rows have one cell per column.
  void Table(const std::string& title, std::vector<std::string> columns);
  void Row(std::vector<Cell> cells);
  // Adds a line below the current table.
  void Note(const std::string& text);

  std::string Markdown() const;
  std::string Json() const;
  // Prints the tables, or the JSON if `json`, to standard output, and writes the JSON to `file` if
  // not empty. Returns the exit status.
  int Print(bool json, const std::string& file) const;

 private:
  struct Section {
    std::string title;
    std::vector<std::string> columns;
    std::vector<std::vector<Cell>> rows;
    std::vector<std::string> notes;
  };

  std::string name_;
  std::vector<Section> sections_;
};

// REQUIRES: not empty.
double Median(std::vector<double> values);

}  // namespace espalier
