#include "server/http/open_inference/statistics_json.h"

namespace espalier {
namespace {

using json = nlohmann::ordered_json;

json Duration(const inference::StatisticDuration& duration) {
  return {{"count", duration.count()}, {"ns", duration.ns()}};
}

}  // namespace

json StatisticsJson(const inference::ModelStatisticsResponse& response) {
  json models = json::array();
  for (const inference::ModelStatistics& model : response.model_stats()) {
    json batches = json::array();
    for (const inference::InferBatchStatistics& batch : model.batch_stats()) {
      batches.push_back({{"batch_size", batch.batch_size()},
                         {"compute_input", Duration(batch.compute_input())},
                         {"compute_infer", Duration(batch.compute_infer())},
                         {"compute_output", Duration(batch.compute_output())}});
    }
    const inference::InferStatistics& requests = model.inference_stats();
    models.push_back({{"name", model.name()},
                      {"version", model.version()},
                      {"last_inference", model.last_inference()},
                      {"inference_count", model.inference_count()},
                      {"execution_count", model.execution_count()},
                      {"inference_stats",
                       {{"success", Duration(requests.success())},
                        {"fail", Duration(requests.fail())},
                        {"queue", Duration(requests.queue())},
                        {"compute_input", Duration(requests.compute_input())},
                        {"compute_infer", Duration(requests.compute_infer())},
                        {"compute_output", Duration(requests.compute_output())}}},
                      {"batch_stats", std::move(batches)}});
  }
  return {{"model_stats", std::move(models)}};
}

}  // namespace espalier
