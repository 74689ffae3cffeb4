#include "client/cli/history/json_exporter.h"

#include <nlohmann/json.hpp>

#include "client/cli/history/row_values.h"
#include "client/cli/proto_json.h"

namespace espalier {

absl::Status JsonExporter::Add(const v1::HistoryRow& row) {
  nlohmann::ordered_json json;
  json["experiment"] = row.experiment();
  json["version"] = row.version();
  json["job"] = row.job_id();
  json["step"] = row.step();
  json["name"] = row.name();
  json["reduction"] = row.reduction();
  json["source"] = SourceOf(row);
  json["replay"] = row.replay_id();
  json["unix_ms"] = row.unix_ms();
  json["value"] = ValueJson(row.value());
  return out_->Write(Dump(json) + "\n");
}

}  // namespace espalier
