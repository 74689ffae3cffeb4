#include "server/inference/serving_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "server/inference/model_server.h"

namespace espalier {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;

Family<Gauge>& MakeGauge(Registry* registry, const std::string& name, const std::string& help) {
  return prometheus::BuildGauge().Name("espalier_" + name).Help(help).Register(*registry);
}

Family<Counter>& MakeCounter(Registry* registry, const std::string& name, const std::string& help) {
  return prometheus::BuildCounter().Name("espalier_" + name).Help(help).Register(*registry);
}

Family<Histogram>& MakeHistogram(Registry* registry, const std::string& name,
                                 const std::string& help) {
  return prometheus::BuildHistogram().Name("espalier_" + name).Help(help).Register(*registry);
}

// Engines keep totals; a Prometheus counter only takes increments.
void RaiseTo(Counter& counter, int64_t total) {
  const double missing = static_cast<double>(total) - counter.Value();
  if (missing > 0) counter.Increment(missing);
}

const Histogram::BucketBoundaries kSeconds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                              1,     2.5,  5,     10,   30,  60,   120};

}  // namespace

struct ServingMetrics::Families {
  explicit Families(Registry* registry)
      : running(MakeGauge(registry, "num_requests_running", "Requests in the running batch.")),
        waiting(MakeGauge(registry, "num_requests_waiting", "Requests that wait to run.")),
        kv_usage(MakeGauge(registry, "kv_cache_usage_ratio", "Used part of the KV cache, 0 to 1.")),
        prompt_tokens(MakeCounter(registry, "prompt_tokens_total", "Prompt tokens computed.")),
        generation_tokens(MakeCounter(registry, "generation_tokens_total", "Tokens generated.")),
        iterations(MakeCounter(registry, "engine_steps_total", "Steps of the engine.")),
        preemptions(MakeCounter(registry, "num_preemptions_total", "Requests preempted.")),
        drafts(MakeCounter(registry, "spec_decode_num_drafts_total", "Trees verified.")),
        draft_tokens(
            MakeCounter(registry, "spec_decode_num_draft_tokens_total", "Tree nodes verified.")),
        accepted_tokens(
            MakeCounter(registry, "spec_decode_num_accepted_tokens_total", "Tree nodes accepted.")),
        accepted_per_position(MakeCounter(registry, "spec_decode_num_accepted_tokens_per_pos_total",
                                          "Tree nodes accepted, by depth from 0.")),
        success(MakeCounter(registry, "request_success_total", "Finished requests by reason.")),
        first_token(MakeHistogram(registry, "time_to_first_token_seconds",
                                  "From submission to the first token.")),
        latency(MakeHistogram(registry, "e2e_request_latency_seconds",
                              "From submission to the last token.")) {}

  Family<Gauge>&running, &waiting, &kv_usage;
  Family<Counter>&prompt_tokens, &generation_tokens, &iterations, &preemptions, &drafts,
      &draft_tokens, &accepted_tokens, &accepted_per_position, &success;
  Family<Histogram>&first_token, &latency;
};

ServingMetrics::ServingMetrics(prometheus::Registry* registry)
    : families_(std::make_unique<Families>(registry)) {}
ServingMetrics::~ServingMetrics() = default;

void ServingMetrics::Add(std::shared_ptr<const LoadedModel> model) {
  absl::MutexLock lock(&mutex_);
  models_[model->description.name()] = std::move(model);
}

void ServingMetrics::Remove(const std::string& name) {
  std::shared_ptr<const LoadedModel> last;  // may join a thread: not under the lock
  absl::MutexLock lock(&mutex_);
  auto it = models_.find(name);
  if (it == models_.end()) return;
  last = std::move(it->second);
  models_.erase(it);
  families_->running.Add({{"model_name", name}}).Set(0);
  families_->waiting.Add({{"model_name", name}}).Set(0);
}

void ServingMetrics::Collect() {
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, model] : models_) {
    const EngineStatistics s = model->host->statistics();
    const prometheus::Labels labels = {{"model_name", name}};
    Families& f = *families_;
    f.running.Add(labels).Set(s.running);
    f.waiting.Add(labels).Set(s.waiting);
    f.kv_usage.Add(labels).Set(s.kv.slots > 0 ? static_cast<double>(s.kv.used) / s.kv.slots : 0);
    RaiseTo(f.prompt_tokens.Add(labels), s.prompt_tokens);
    RaiseTo(f.generation_tokens.Add(labels), s.generated_tokens);
    RaiseTo(f.iterations.Add(labels), s.steps);
    RaiseTo(f.preemptions.Add(labels), s.preemptions);
    RaiseTo(f.drafts.Add(labels), s.verifications);
    RaiseTo(f.draft_tokens.Add(labels), s.drafted_tokens);
    RaiseTo(f.accepted_tokens.Add(labels), s.accepted_tokens);
    for (size_t d = 0; d < s.accepted_by_depth.size(); ++d) {
      RaiseTo(f.accepted_per_position.Add({{"model_name", name}, {"position", std::to_string(d)}}),
              s.accepted_by_depth[d]);
    }
  }
}

void ServingMetrics::RequestFinished(const std::string& model, const RequestEvent& event) {
  const prometheus::Labels labels = {{"model_name", model}};
  families_->success.Add({{"model_name", model}, {"finished_reason", Name(event.reason)}})
      .Increment();
  if (event.usage.completion_tokens > 0) {
    families_->first_token.Add(labels, kSeconds).Observe(event.usage.seconds_to_first_token);
    families_->latency.Add(labels, kSeconds).Observe(event.usage.seconds);
  }
}

}  // namespace espalier
