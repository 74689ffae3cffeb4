// Prometheus metrics of serving, with vLLM's metric names under the prefix espalier_.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/inference.pb.h"
#include "serving/engine/engine.h"
#include "serving/statistics/histogram.h"

namespace prometheus {
class Counter;
template <typename T>
class Family;
class Gauge;
class Histogram;
class Registry;
}  // namespace prometheus

namespace espalier {

struct LoadedModel;

// Thread-safe. Collect reads the engines' statistics and must be called before each exposition.
class ServingMetrics {
 public:
  // `registry` must outlive this object.
  explicit ServingMetrics(prometheus::Registry* registry);
  ~ServingMetrics();

  void Add(std::shared_ptr<const LoadedModel> model);
  void Remove(const std::string& name);
  // Sets the number of models in each of ModelServer's states; states not named become 0.
  void SetModels(const std::map<std::string, int>& by_state);

  // Updates gauges and counters from the engines' statistics.
  void Collect();

  // Records one event of a request: the time since its last tokens.
  void RequestProgressed(const std::string& model, const RequestEvent& event);
  // Records the end of one answer, or of one embedded text: times, sizes and reason.
  void RequestFinished(const std::string& model, const v1::GenerateRequest& request,
                       const RequestEvent& event);
  // Records the end of all answers of one request; `longest` is the most tokens of one answer.
  // Records nothing if it is 0.
  void AnswersFinished(const std::string& model, const v1::GenerateRequest& request, int longest);
  // Records one HTTP request by its route.
  void HttpAnswered(const std::string& method, const std::string& route, int status,
                    double seconds);

 private:
  struct Families;
  struct MonitoredModel {
    std::shared_ptr<const LoadedModel> model;
    // The engine's totals when last added to each counter. A reloaded model restarts at 0; its
    // counters continue.
    std::map<prometheus::Counter*, int64_t> seen;
    std::map<prometheus::Counter*, double> seen_seconds;
    // The same for histograms.
    std::map<prometheus::Histogram*, HistogramCounts> seen_sizes;
    // Info series, removed with the model.
    std::vector<std::pair<prometheus::Family<prometheus::Gauge>*, prometheus::Gauge*>> own;
    prometheus::Gauge* adapters = nullptr;  // current series of lora_requests

    void IncreaseTo(prometheus::Counter& counter, int64_t total);
    void IncreaseSecondsTo(prometheus::Counter& counter, double total);
    void IncreaseTo(prometheus::Histogram& histogram, const HistogramCounts& total);
  };
  void CollectPredictions(const std::string& name, MonitoredModel* watched);
  void CollectSizes(const std::string& name, const EngineStatistics& statistics,
                    MonitoredModel* watched);
  void CollectAdapters(const std::string& name, const EngineStatistics& statistics,
                       MonitoredModel* watched);
  void CollectSpeculation(const std::string& name, const EngineStatistics& statistics,
                          MonitoredModel* watched);

  std::unique_ptr<Families> families_;
  absl::Mutex mutex_;
  std::map<std::string, MonitoredModel> models_ ABSL_GUARDED_BY(mutex_);
  // By model, for what is observed with every token event: Family::Add allocates.
  absl::Mutex pieces_mutex_;
  absl::flat_hash_map<std::string, prometheus::Histogram*> pieces_ ABSL_GUARDED_BY(pieces_mutex_);
};

}  // namespace espalier
