// What serving engines count, under the names that vLLM's dashboards know, with our prefix.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/inference.pb.h"
#include "serving/engine/engine.h"

namespace prometheus {
class Counter;
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

  // Updates gauges and counters from the engines' statistics.
  void Collect();

  // Of one event of a request: the time between its tokens.
  void RequestProgressed(const std::string& model, const RequestEvent& event);
  // Times, sizes and the reason of the end of one request.
  void RequestFinished(const std::string& model, const proto::GenerateRequest& request,
                       const RequestEvent& event);
  // One HTTP request, by its route.
  void HttpAnswered(const std::string& method, const std::string& route, int status,
                    double seconds);

 private:
  struct Families;
  struct Watched {
    std::shared_ptr<const LoadedModel> model;
    // Its engine's totals when they were last added to a counter. A model that is loaded again
    // begins at 0, its counters go on.
    std::map<prometheus::Counter*, int64_t> seen;
    void RaiseBy(prometheus::Counter& counter, int64_t total);
  };
  void CollectSpeculation(const std::string& name, const EngineStatistics& statistics,
                          Watched* watched);

  std::unique_ptr<Families> families_;
  absl::Mutex mutex_;
  std::map<std::string, Watched> models_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
