#include "server/inference/serving_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
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

const Histogram::BucketBoundaries kSeconds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                              1,     2.5,  5,     10,   30,  60,   120};
const Histogram::BucketBoundaries kTokenSeconds = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                                   0.05,   0.1,   0.25,   0.5,   1,    2.5};
const Histogram::BucketBoundaries kTokens = {1,   2,    5,    10,   20,    50,    100,  200,
                                             500, 1000, 2000, 5000, 10000, 20000, 50000};
const Histogram::BucketBoundaries kAnswers = {1, 2, 5, 10, 20, 50, 100};

}  // namespace

struct ServingMetrics::Families {
  explicit Families(Registry* registry)
      : running(MakeGauge(registry, "num_requests_running", "Requests in the running batch.")),
        waiting(MakeGauge(registry, "num_requests_waiting", "Requests that wait to run.")),
        kv_usage(MakeGauge(registry, "kv_cache_usage_ratio", "Used part of the KV cache, 0 to 1.")),
        kv_bytes(MakeGauge(registry, "kv_cache_bytes",
                           "Memory of the KV caches of a model and those that draft for it.")),
        prompt_tokens(MakeCounter(registry, "prompt_tokens_total", "Prompt tokens computed.")),
        generation_tokens(MakeCounter(registry, "generation_tokens_total", "Tokens generated.")),
        iterations(MakeCounter(registry, "engine_steps_total", "Steps of the engine.")),
        preemptions(MakeCounter(registry, "num_preemptions_total", "Requests preempted.")),
        drafts(MakeCounter(registry, "spec_decode_num_drafts_total", "Trees verified.")),
        draft_tokens(
            MakeCounter(registry, "spec_decode_num_draft_tokens_total", "Tree nodes verified.")),
        accepted_tokens(
            MakeCounter(registry, "spec_decode_num_accepted_tokens_total", "Tree nodes accepted.")),
        drafted_per_position(MakeCounter(registry, "spec_decode_num_draft_tokens_per_pos_total",
                                         "Tree nodes verified, by depth from 0.")),
        accepted_per_position(MakeCounter(registry, "spec_decode_num_accepted_tokens_per_pos_total",
                                          "Tree nodes accepted, by depth from 0.")),
        lookup_drafted(MakeCounter(registry, "spec_decode_num_lookup_draft_tokens_total",
                                   "Tree nodes verified that lookups drafted.")),
        lookup_accepted(MakeCounter(registry, "spec_decode_num_lookup_accepted_tokens_total",
                                    "Tree nodes accepted that lookups drafted.")),
        tuned_off(MakeCounter(registry, "spec_decode_num_tuned_off_steps_total",
                              "Steps without any SSM because none would have paid.")),
        ssm_active(MakeGauge(registry, "spec_decode_ssm_active",
                             "0 for an SSM that failed and is not used any more.")),
        prefix_queries(MakeCounter(registry, "prefix_cache_queries_total",
                                   "Prompt tokens looked up in the prefix cache.")),
        prefix_hits(MakeCounter(registry, "prefix_cache_hits_total",
                                "Prompt tokens found in the prefix cache.")),
        cache_config(MakeGauge(registry, "cache_config_info", "1; the labels say what there is.")),
        success(MakeCounter(registry, "request_success_total", "Finished requests by reason.")),
        first_token(MakeHistogram(registry, "time_to_first_token_seconds",
                                  "From submission to the first token.")),
        latency(MakeHistogram(registry, "e2e_request_latency_seconds",
                              "From submission to the last token.")),
        between_tokens(MakeHistogram(registry, "inter_token_latency_seconds",
                                     "Between two pieces of an answer.")),
        per_token(MakeHistogram(registry, "request_time_per_output_token_seconds",
                                "Mean over an answer's tokens but the first.")),
        queued(MakeHistogram(registry, "request_queue_time_seconds",
                             "From submission until it runs.")),
        inference(MakeHistogram(registry, "request_inference_time_seconds",
                                "From when it runs to the last token.")),
        prefill(MakeHistogram(registry, "request_prefill_time_seconds",
                              "From when it runs to the first token.")),
        decode(MakeHistogram(registry, "request_decode_time_seconds",
                             "From the first token to the last.")),
        prompt_sizes(MakeHistogram(registry, "request_prompt_tokens", "Tokens of a prompt.")),
        answer_sizes(MakeHistogram(registry, "request_generation_tokens", "Tokens of an answer.")),
        wanted_sizes(MakeHistogram(registry, "request_params_max_tokens", "max_tokens as given.")),
        wanted_answers(MakeHistogram(registry, "request_params_n", "n as given.")),
        refused(MakeCounter(registry, "admission_rejections_total",
                            "Requests that were not admitted, by reason.")),
        http_requests(MakeCounter(registry, "http_requests_total",
                                  "HTTP requests by method, handler and status.")),
        http_seconds(MakeHistogram(registry, "http_request_duration_seconds",
                                   "Until the answer was complete or its stream began.")) {}

  Family<Gauge>&running, &waiting, &kv_usage, &kv_bytes;
  Family<Counter>&prompt_tokens, &generation_tokens, &iterations, &preemptions, &drafts,
      &draft_tokens, &accepted_tokens, &drafted_per_position, &accepted_per_position,
      &lookup_drafted, &lookup_accepted, &tuned_off;
  Family<Gauge>& ssm_active;
  Family<Counter>&prefix_queries, &prefix_hits;
  Family<Gauge>& cache_config;
  Family<Counter>& success;
  Family<Histogram>&first_token, &latency, &between_tokens, &per_token, &queued, &inference,
      &prefill, &decode, &prompt_sizes, &answer_sizes, &wanted_sizes, &wanted_answers;
  Family<Counter>&refused, &http_requests;
  Family<Histogram>& http_seconds;
};

ServingMetrics::ServingMetrics(prometheus::Registry* registry)
    : families_(std::make_unique<Families>(registry)) {}
ServingMetrics::~ServingMetrics() = default;

void ServingMetrics::Watched::RaiseBy(Counter& counter, int64_t total) {
  int64_t& known = seen[&counter];
  if (total > known) counter.Increment(static_cast<double>(total - known));
  known = std::max(known, total);
}

void ServingMetrics::Add(std::shared_ptr<const LoadedModel> model) {
  absl::MutexLock lock(&mutex_);
  const std::string& name = model->description.name();
  families_->cache_config
      .Add({{"model_name", name},
            {"block_size", absl::StrCat(KvCache::kBlock)},
            {"num_slots", absl::StrCat(model->host->statistics().kv.slots)},
            {"enable_prefix_caching", model->description.no_prefix_cache() ? "False" : "True"}})
      .Set(1);
  models_[name] = {std::move(model), {}};
}

void ServingMetrics::Remove(const std::string& name) {
  Collect();                                // what was counted since
  std::shared_ptr<const LoadedModel> last;  // may join a thread: not under the lock
  absl::MutexLock lock(&mutex_);
  auto it = models_.find(name);
  if (it == models_.end()) return;
  last = std::move(it->second.model);
  models_.erase(it);
  for (Family<Gauge>* family :
       {&families_->running, &families_->waiting, &families_->kv_usage, &families_->kv_bytes}) {
    family->Add({{"model_name", name}}).Set(0);
  }
}

void ServingMetrics::Collect() {
  absl::MutexLock lock(&mutex_);
  for (auto& [name, watched] : models_) {
    const EngineStatistics s = watched.model->host->statistics();
    const prometheus::Labels labels = {{"model_name", name}};
    Families& f = *families_;
    f.running.Add(labels).Set(s.running);
    f.waiting.Add(labels).Set(s.waiting);
    f.kv_usage.Add(labels).Set(s.kv.slots > 0 ? static_cast<double>(s.kv.used) / s.kv.slots : 0);
    f.kv_bytes.Add(labels).Set(static_cast<double>(watched.model->host->kv_cache_bytes()));
    watched.RaiseBy(f.prompt_tokens.Add(labels), s.prompt_tokens);
    watched.RaiseBy(f.generation_tokens.Add(labels), s.generated_tokens);
    watched.RaiseBy(f.iterations.Add(labels), s.steps);
    watched.RaiseBy(f.preemptions.Add(labels), s.preemptions);
    watched.RaiseBy(f.prefix_queries.Add(labels), s.looked_up_tokens);
    watched.RaiseBy(f.prefix_hits.Add(labels), s.cached_tokens);
    CollectSpeculation(name, s, &watched);
  }
}

void ServingMetrics::CollectSpeculation(const std::string& name, const EngineStatistics& s,
                                        Watched* watched) {
  const prometheus::Labels labels = {{"model_name", name}};
  Families& f = *families_;
  watched->RaiseBy(f.drafts.Add(labels), s.trees);
  watched->RaiseBy(f.draft_tokens.Add(labels), s.drafted_tokens);
  watched->RaiseBy(f.accepted_tokens.Add(labels), s.accepted_tokens);
  for (const auto& [family, counts] : {std::pair{&f.drafted_per_position, &s.drafted_by_depth},
                                       std::pair{&f.accepted_per_position, &s.accepted_by_depth}}) {
    for (size_t d = 0; d < counts->size(); ++d) {
      watched->RaiseBy(family->Add({{"model_name", name}, {"position", absl::StrCat(d)}}),
                       (*counts)[d]);
    }
  }
  watched->RaiseBy(f.lookup_drafted.Add(labels), s.speculation.lookup_drafted);
  watched->RaiseBy(f.lookup_accepted.Add(labels), s.speculation.lookup_accepted);
  watched->RaiseBy(f.tuned_off.Add(labels), s.speculation.tuned_off);
  const proto::ServedModel& description = watched->model->description;
  const size_t ssms = std::min(s.speculation.ssm_status.size(),
                               static_cast<size_t>(description.ssm_artifacts_size()));
  for (size_t i = 0; i < ssms; ++i) {
    f.ssm_active
        .Add({{"model_name", name}, {"ssm", description.ssm_artifacts(static_cast<int>(i))}})
        .Set(s.speculation.ssm_status[i].ok() ? 1 : 0);
  }
}

void ServingMetrics::RequestProgressed(const std::string& model, const RequestEvent& event) {
  if (event.tokens.empty() || event.seconds_since_last <= 0) return;
  families_->between_tokens.Add({{"model_name", model}}, kTokenSeconds)
      .Observe(event.seconds_since_last);
}

void ServingMetrics::RequestFinished(const std::string& model,
                                     const proto::GenerateRequest& request,
                                     const RequestEvent& event) {
  Families& f = *families_;
  const prometheus::Labels labels = {{"model_name", model}};
  if (event.error.code() == absl::StatusCode::kResourceExhausted) {
    f.refused.Add({{"model_name", model}, {"reason", "queue_full"}}).Increment();
    return;
  }
  f.success.Add({{"model_name", model}, {"finished_reason", Name(event.reason)}}).Increment();
  const Usage& usage = event.usage;
  if (usage.completion_tokens == 0) return;
  f.first_token.Add(labels, kSeconds).Observe(usage.seconds_to_first_token);
  f.latency.Add(labels, kSeconds).Observe(usage.seconds);
  f.queued.Add(labels, kSeconds).Observe(usage.seconds_queued);
  f.inference.Add(labels, kSeconds).Observe(usage.seconds - usage.seconds_queued);
  f.prefill.Add(labels, kSeconds).Observe(usage.seconds_to_first_token - usage.seconds_queued);
  const double decoding = usage.seconds - usage.seconds_to_first_token;
  f.decode.Add(labels, kSeconds).Observe(decoding);
  if (usage.completion_tokens > 1) {
    f.per_token.Add(labels, kTokenSeconds).Observe(decoding / (usage.completion_tokens - 1));
  }
  f.prompt_sizes.Add(labels, kTokens).Observe(usage.prompt_tokens);
  f.answer_sizes.Add(labels, kTokens).Observe(usage.completion_tokens);
  if (request.max_tokens() > 0) f.wanted_sizes.Add(labels, kTokens).Observe(request.max_tokens());
  f.wanted_answers.Add(labels, kAnswers).Observe(std::max(1, request.n()));
}

void ServingMetrics::HttpAnswered(const std::string& method, const std::string& route, int status,
                                  double seconds) {
  families_->http_requests
      .Add({{"method", method}, {"handler", route}, {"status", std::to_string(status)}})
      .Increment();
  families_->http_seconds.Add({{"method", method}, {"handler", route}}, kSeconds).Observe(seconds);
}

}  // namespace espalier
