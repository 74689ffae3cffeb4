#include "tests/benchmarks/report.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace espalier {

Cell Text(const std::string& text) { return {text, text}; }

Cell Number(double value, int digits) { return {absl::StrFormat("%.*f", digits, value), value}; }

void Report::Table(const std::string& title, std::vector<std::string> columns) {
  sections_.push_back({title, std::move(columns), {}, {}});
}

void Report::Row(std::vector<Cell> cells) { sections_.back().rows.push_back(std::move(cells)); }

void Report::Note(const std::string& text) { sections_.back().notes.push_back(text); }

std::string Report::Markdown() const {
  std::string out;
  for (const Section& section : sections_) {
    absl::StrAppend(&out, "### ", section.title, "\n\n");
    std::vector<size_t> widths;
    for (size_t c = 0; c < section.columns.size(); ++c) {
      size_t width = section.columns[c].size();
      for (const auto& row : section.rows) width = std::max(width, row[c].text.size());
      widths.push_back(width);
    }
    auto right = [&](size_t c) {
      return !section.rows.empty() && section.rows[0][c].value.is_number();
    };
    auto line = [&](auto text_of) {
      for (size_t c = 0; c < widths.size(); ++c) {
        const std::string text = text_of(c);
        const std::string fill(widths[c] - text.size(), ' ');
        absl::StrAppend(&out, "| ", right(c) ? fill + text : text + fill, " ");
      }
      absl::StrAppend(&out, "|\n");
    };
    line([&](size_t c) { return section.columns[c]; });
    for (size_t c = 0; c < widths.size(); ++c) {
      absl::StrAppend(&out, "|", std::string(widths[c] + 1, '-'), right(c) ? ":" : "-");
    }
    absl::StrAppend(&out, "|\n");
    for (const auto& row : section.rows) line([&](size_t c) { return row[c].text; });
    absl::StrAppend(&out, "\n");
    for (const std::string& note : section.notes) absl::StrAppend(&out, note, "\n\n");
  }
  return out;
}

std::string Report::Json() const {
  nlohmann::ordered_json root = {{"benchmark", name_}};
  for (const Section& section : sections_) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const auto& row : section.rows) {
      nlohmann::ordered_json object;
      for (size_t c = 0; c < section.columns.size(); ++c) object[section.columns[c]] = row[c].value;
      rows.push_back(std::move(object));
    }
    root["tables"].push_back(
        {{"title", section.title}, {"rows", std::move(rows)}, {"notes", section.notes}});
  }
  return root.dump(1) + "\n";
}

int Report::Print(bool json, const std::string& file) const {
  std::fputs((json ? Json() : Markdown()).c_str(), stdout);
  if (file.empty()) return 0;
  std::ofstream out(file);
  out << Json();
  out.close();
  if (out.good()) return 0;
  std::fprintf(stderr, "cannot write %s\n", file.c_str());
  return 1;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

}  // namespace espalier
