#include "client/cli/bench/row_formats.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/cli/proto_json.h"
#include "client/terminal/table.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kSqlTable[] = "espalier_bench";

// Returns names and values of the scalar fields.
std::vector<std::pair<std::string, Json>> Fields(const Json& row) {
  std::vector<std::pair<std::string, Json>> fields;
  for (const auto& [name, value] : row.items()) {
    if (!value.is_array()) fields.emplace_back(name, value);
  }
  return fields;
}

// Returns the cells of the human-readable table; `plain`: ASCII only.
std::vector<std::string> Cells(const Json& row, bool plain) {
  const auto text = [&](const char* name) {
    return row[name].is_string() ? Printable(row[name].get<std::string>()) : std::string();
  };
  const auto number = [&](const char* name) {
    return row[name].is_number() ? row[name].get<double>() : 0;
  };
  const double size = number("model_size");
  return {
      text("model"),
      size > 0 ? FormatBytes(size) : "",
      FormatCount(number("model_n_params")),
      text("weights"),
      text("backends"),
      row["n_threads"].is_null() ? "" : absl::StrCat(row["n_threads"].get<int64_t>()),
      text("drafts"),
      text("test"),
      absl::StrFormat("%.2f %s %.2f", number("avg_ts"), plain ? "+-" : "±", number("stddev_ts"))};
}

struct Heading {
  const char* name;
  Align align;
};
constexpr Heading kHeadings[] = {
    {"model", Align::kLeft},   {"size", Align::kRight},   {"params", Align::kRight},
    {"weights", Align::kLeft}, {"backend", Align::kLeft}, {"threads", Align::kRight},
    {"drafts", Align::kLeft},  {"test", Align::kRight},   {"t/s", Align::kRight}};

std::string AsTable(const std::vector<Json>& rows, const Terminal& terminal) {
  std::vector<Table::Column> columns;
  for (const Heading& heading : kHeadings) columns.push_back({heading.name, heading.align});
  columns[0].shrink = true;
  Table table(std::move(columns));
  for (const Json& row : rows) table.Row(Cells(row, !terminal.unicode));
  return table.Render(terminal);
}

std::string AsMarkdown(const std::vector<Json>& rows) {
  const auto line = [](const std::vector<std::string>& cells) {
    return absl::StrCat("| ", absl::StrJoin(cells, " | "), " |\n");
  };
  std::vector<std::string> names, rules;
  for (const Heading& heading : kHeadings) {
    names.push_back(heading.name);
    rules.push_back(heading.align == Align::kRight ? "---:" : "---");
  }
  std::string out = line(names) + line(rules);
  for (const Json& row : rows) {
    std::vector<std::string> cells = Cells(row, /*plain=*/false);
    for (std::string& cell : cells) cell = absl::StrReplaceAll(cell, {{"|", "\\|"}});
    out += line(cells);
  }
  return out;
}

// Quotes every value, as llama-bench does; unknown values are empty.
std::string CsvCell(const Json& value) {
  if (value.is_null()) return "";
  const std::string text = value.is_string() ? value.get<std::string>() : Dump(value);
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

std::string AsCsv(const std::vector<Json>& rows) {
  std::string out;
  for (const Json& row : rows) {
    std::vector<std::string> names, cells;
    for (const auto& [name, value] : Fields(row)) {
      names.push_back(name);
      cells.push_back(CsvCell(value));
    }
    if (out.empty()) out = absl::StrCat(absl::StrJoin(names, ","), "\n");
    absl::StrAppend(&out, absl::StrJoin(cells, ","), "\n");
  }
  return out;
}

std::string SqlValue(const Json& value) {
  if (value.is_null()) return "NULL";
  if (!value.is_string()) return Dump(value);
  return absl::StrCat("'", absl::StrReplaceAll(value.get<std::string>(), {{"'", "''"}}), "'");
}

// The type depends on the name only, so that it does not change with the first row.
const char* SqlType(const std::string& name) {
  if (name == "avg_ts" || name == "stddev_ts") return "REAL";
  const bool count = absl::StartsWith(name, "n_") || absl::EndsWith(name, "_ns") ||
                     name == "model_size" || name == "model_n_params";
  return count ? "INTEGER" : "TEXT";
}

std::string AsSql(const std::vector<Json>& rows) {
  std::string out;
  for (const Json& row : rows) {
    std::vector<std::string> columns, names, values;
    for (const auto& [name, value] : Fields(row)) {
      columns.push_back(absl::StrCat("  ", name, " ", SqlType(name)));
      names.push_back(name);
      values.push_back(SqlValue(value));
    }
    if (out.empty()) {
      out = absl::StrCat("CREATE TABLE IF NOT EXISTS ", kSqlTable, " (\n",
                         absl::StrJoin(columns, ",\n"), "\n);\n\n");
    }
    absl::StrAppend(&out, "INSERT INTO ", kSqlTable, " (", absl::StrJoin(names, ", "), ") VALUES (",
                    absl::StrJoin(values, ", "), ");\n");
  }
  return out;
}

}  // namespace

std::string FormatRows(const std::string& format, const std::vector<Json>& rows,
                       const Terminal& terminal) {
  if (format == "csv") return AsCsv(rows);
  if (format == "md") return AsMarkdown(rows);
  if (format == "sql") return AsSql(rows);
  if (format == "json") return Dump(Json(rows), 2) + "\n";
  if (format == "jsonl") {
    std::string out;
    for (const Json& row : rows) absl::StrAppend(&out, Dump(row), "\n");
    return out;
  }
  return AsTable(rows, terminal);
}

}  // namespace espalier
