#include "client/cli/history/csv_exporter.h"

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "client/cli/history/row_values.h"
#include "client/cli/proto_json.h"

namespace espalier {
namespace {

std::string CsvCell(absl::string_view text) {
  if (text.find_first_of(",\"\r\n") == absl::string_view::npos) return std::string(text);
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

}  // namespace

absl::Status CsvExporter::Head() {
  if (head_) return absl::OkStatus();
  head_ = true;
  return out_->Write("experiment,version,job,step,name,reduction,source,replay,value\n");
}

absl::Status CsvExporter::Add(const v1::HistoryRow& row) {
  if (absl::Status s = Head(); !s.ok()) return s;
  const auto number = NumberOf(row.value());
  const std::string value = number ? ExactNumber(*number)
                            : row.value().kind_case() == v1::ProbeValue::KIND_NOT_SET
                                ? ""
                                : Dump(ValueJson(row.value()));
  return out_->Write(absl::StrCat(CsvCell(row.experiment()), ",", row.version(), ",",
                                  CsvCell(row.job_id()), ",", row.step(), ",", CsvCell(row.name()),
                                  ",", CsvCell(row.reduction()), ",", SourceOf(row), ",",
                                  CsvCell(row.replay_id()), ",", CsvCell(value), "\n"));
}

absl::Status CsvExporter::Finish() {
  if (absl::Status s = Head(); !s.ok()) return s;
  return out_->Finish();
}

}  // namespace espalier
