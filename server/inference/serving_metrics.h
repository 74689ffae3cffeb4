// What serving engines count, under the names that vLLM's dashboards know, with our prefix.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "serving/engine/engine.h"

namespace prometheus {
class Registry;
}

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

  // espalier_time_to_first_token_seconds, espalier_e2e_request_latency_seconds and
  // espalier_request_success_total{finished_reason} of one finished request.
  void RequestFinished(const std::string& model, const RequestEvent& event);

 private:
  struct Families;
  std::unique_ptr<Families> families_;
  absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<const LoadedModel>> models_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
