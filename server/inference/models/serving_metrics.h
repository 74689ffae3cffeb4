// What serving engines count, under the names that vLLM's dashboards know, with our prefix.
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

// Thread-safe. Values are taken from the engines when Collect is called, before an exposition.
class ServingMetrics {
 public:
  // `registry` must outlive this object.
  explicit ServingMetrics(prometheus::Registry* registry);
  ~ServingMetrics();

  void Add(std::shared_ptr<const LoadedModel> model);
  void Remove(const std::string& name);
  // All that are to be served, by ModelServer's states; states not named become 0.
  void SetModels(const std::map<std::string, int>& by_state);

  // Updates gauges and counters from the engines' statistics.
  void Collect();

  // Of one event of a request: the time between its tokens.
  void RequestProgressed(const std::string& model, const RequestEvent& event);
  // Times, sizes and the reason of the end of one answer, or of one text of which an embedding was
  // wanted.
  void RequestFinished(const std::string& model, const v1::GenerateRequest& request,
                       const RequestEvent& event);
  // All answers of one request have ended; `longest` of them had so many tokens. Nothing is counted
  // if that is none.
  void AnswersFinished(const std::string& model, const v1::GenerateRequest& request,
                       int longest);
  // One HTTP request, by its route.
  void HttpAnswered(const std::string& method, const std::string& route, int status,
                    double seconds);

 private:
  struct Families;
  struct MonitoredModel {
    std::shared_ptr<const LoadedModel> model;
    // Its engine's totals when they were last added to a counter. A model that is loaded again
    // begins at 0, its counters go on.
    std::map<prometheus::Counter*, int64_t> seen;
    // Likewise of what engines count by size.
    std::map<prometheus::Histogram*, HistogramCounts> seen_sizes;
    // Series that say what the model is, and go with it.
    std::vector<std::pair<prometheus::Family<prometheus::Gauge>*, prometheus::Gauge*>> own;
    prometheus::Gauge* adapters = nullptr;  // of the family that says which are used

    void IncreaseTo(prometheus::Counter& counter, int64_t total);
    void IncreaseTo(prometheus::Histogram& histogram, const HistogramCounts& total);
  };
  void CollectSizes(const std::string& name, const EngineStatistics& statistics, MonitoredModel* watched);
  void CollectAdapters(const std::string& name, const EngineStatistics& statistics,
                       MonitoredModel* watched);
  void CollectSpeculation(const std::string& name, const EngineStatistics& statistics,
                          MonitoredModel* watched);

  std::unique_ptr<Families> families_;
  absl::Mutex mutex_;
  std::map<std::string, MonitoredModel> models_ ABSL_GUARDED_BY(mutex_);
  // By model, for what is observed with every piece of an answer: finding a family allocates.
  absl::Mutex pieces_mutex_;
  absl::flat_hash_map<std::string, prometheus::Histogram*> pieces_ ABSL_GUARDED_BY(pieces_mutex_);
};

}  // namespace espalier
