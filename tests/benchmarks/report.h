// What a benchmark found: tables of text (Markdown) for people, JSON for machines.
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

  // A new table. Rows have one cell per column.
  void Table(const std::string& title, std::vector<std::string> columns);
  void Row(std::vector<Cell> cells);
  // A line below the current table.
  void Note(const std::string& text);

  std::string Markdown() const;
  std::string Json() const;
  // `json`: false, the tables to standard output; true, the JSON. `file`: where the JSON goes
  // besides; empty: nowhere. Returns the exit status.
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
