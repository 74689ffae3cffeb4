#include "client/cli/history/exporters.h"

#include <utility>

#include "client/cli/history/csv_exporter.h"
#include "client/cli/history/mlflow_exporter.h"
#include "client/cli/history/output_file.h"
#include "client/cli/history/parquet_exporter.h"
#include "client/cli/history/svg_exporter.h"
#include "client/cli/history/tensorboard_exporter.h"

namespace espalier {
namespace {

using Made = absl::StatusOr<std::unique_ptr<HistoryExporter>>;

FlagSpec To(const std::string& name, const std::string& value, const std::string& doc) {
  return {name, FlagType::kText, value, doc};
}

absl::StatusOr<std::unique_ptr<OutputFile>> OutputTo(const ExportEnvironment& environment,
                                                     const std::string& to) {
  if (to == "-") return std::make_unique<OutputFile>(environment.out);
  return OutputFile::Create(*environment.files, to);
}

// An exporter into one file.
template <typename Exporter>
Made IntoFile(const ExportEnvironment& environment, const std::string& to) {
  auto out = OutputTo(environment, to);
  if (!out.ok()) return out.status();
  return std::make_unique<Exporter>(*std::move(out));
}

}  // namespace

std::vector<ExportFormat> ExportFormats() {
  return {
      {To("csv", "FILE", "write comma-separated values; - is standard output"), /*to_stream=*/true,
       IntoFile<CsvExporter>},
      {To("parquet", "FILE", "write a Parquet file"), true, IntoFile<ParquetExporter>},
      {To("svg", "FILE", "draw plots of numbers and maps of histograms on one page"), true,
       IntoFile<SvgExporter>},
      {To("tensorboard", "DIR", "write TensorBoard's event files, a folder for each run"), false,
       [](const ExportEnvironment& environment, const std::string& to) -> Made {
         return std::make_unique<TensorboardExporter>(environment.files, to);
       }},
      {To("mlflow", "URL", "log metrics to a tracking server of MLflow, a run for each version"),
       false,
       [](const ExportEnvironment& environment, const std::string& to) -> Made {
         auto client = MlflowClient::Make(to, environment.getenv, environment.sleep);
         if (!client.ok()) return client.status();
         return std::make_unique<MlflowExporter>(*std::move(client));
       }},
  };
}

}  // namespace espalier
