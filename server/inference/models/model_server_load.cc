// Loads a model: from a request to parts, and from parts to an engine with its description.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/kv_cache_dtype.h"
#include "server/inference/models/model_server.h"
#include "server/inference/models/sampling_defaults.h"
#include "server/inference/models/serve_request.h"

namespace espalier {
namespace {

// Tree size to allow for when speculation is tuned.
constexpr int kTunedNodes = 40, kTunedDepth = 8;

// Returns whether any model runs on workers.
bool OnWorkers(const std::vector<v1::ModelPlacement>& placements) {
  return std::any_of(placements.begin(), placements.end(),
                     [](const v1::ModelPlacement& place) { return place.tensor_parallel() > 0; });
}

}  // namespace

absl::StatusOr<ModelServer::Prepared> ModelServer::LoadParts(const v1::ServeModelRequest& request,
                                                             const std::string& name,
                                                             bool may_wait) {
  absl::StatusOr<Expansion> expansion =
      Expansion::Create({request.expansion().begin(), request.expansion().end()});
  if (!expansion.ok()) return expansion.status();
  ServingSize size;
  size.max_sequence_length = request.max_sequence_length();
  size.max_requests = request.max_requests_per_batch();
  size.max_tokens_per_batch = request.max_tokens_per_batch();
  size.kv_cache_tokens = static_cast<int>(request.kv_cache_tokens());
  // A restored model was accepted before, maybe by a version without this check.
  size.short_ssms = request.short_ssms() || may_wait;
  const absl::StatusOr<DType> kv_cache_dtype = KvCacheDTypeOf(request.kv_cache());
  if (!kv_cache_dtype.ok()) return kv_cache_dtype.status();
  size.kv_cache_dtype = *kv_cache_dtype;
  if (request.tune_speculation() || request.ngram_depth() > 0) {
    const int sources = request.ssm_artifacts_size() + (request.ngram_depth() > 0 ? 1 : 0);
    size.tree_nodes = kTunedNodes * sources + 2 * request.ngram_depth();
    size.tree_depth = std::max(kTunedDepth, request.ngram_depth());
  }
  ModelLoader::Formats formats;
  formats.resident_weight_bytes = request.resident_weight_bytes();
  for (const auto& [given, format] : {std::pair{&request.weights(), &formats.llm},
                                      std::pair{&request.ssm_weights(), &formats.ssms}}) {
    if (given->empty()) continue;
    absl::StatusOr<WeightFormat> known = WeightFormatOf(*given);
    if (!known.ok()) return known.status();
    *format = *known;
  }
  formats.versions = VersionsOf(request);
  for (const v1::LoraAdapter& adapter : request.adapters()) {
    formats.adapters.push_back(adapter.artifact());
  }
  absl::StatusOr<ModelLoader::Loaded> loaded = options_.loader->Load(
      request.artifact(), {request.ssm_artifacts().begin(), request.ssm_artifacts().end()}, size,
      *expansion, formats,
      {.name = name,
       .models = PlacementsOf(request),
       .expected_requests = request.expected_requests() > 0 ? request.expected_requests()
                                                            : request.max_requests_per_batch(),
       .concurrent_steps = request.tune_speculation() ? 1 : request.concurrent_steps(),
       .may_wait = may_wait,
       .fitted_kv_cache_tokens = static_cast<int>(request.fitted_kv_cache_tokens())});
  if (!loaded.ok()) return loaded.status();
  EngineOptions options;
  options.expansion = *std::move(expansion);
  options.max_requests = request.max_requests_per_batch();
  options.max_tokens_per_batch = request.max_tokens_per_batch();
  options.max_queue = request.max_queue();
  options.speculation.tune = request.tune_speculation();
  // Coupled sampling makes a seeded answer independent of the draft tree. On workers always: other
  // sampling needs full rows of draft logits from them.
  options.speculation.sampled =
      OnWorkers(loaded->placements) ? SampledDrafting::kCoupled : SampledDrafting::kCoupledIfSeeded;
  options.speculation.ngram.depth = request.ngram_depth();
  // Then requests share nothing, so timing reveals nothing about other requests.
  if (request.no_prefix_cache()) options.speculation.ngram.history_tokens = 0;
  options.prefix_cache = !request.no_prefix_cache();
  options.max_sequence_length = request.max_sequence_length();
  options.concurrent_steps = request.concurrent_steps();
  // Relative to a start time, to keep microseconds within a double's precision.
  options.seconds = [clock = options_.clock, start = options_.clock->Now()] {
    return absl::ToDoubleSeconds(clock->Now() - start);
  };
  Prepared prepared{request, std::move(loaded->parts), std::move(options), loaded->parameters,
                    std::move(loaded->describe)};
  prepared.kv_cache_tokens = loaded->kv_cache_tokens;
  prepared.kv_cache_reduced = loaded->kv_cache_reduced;
  prepared.placements = std::move(loaded->placements);
  prepared.candidates = std::move(loaded->candidates);
  prepared.request.set_weights(Name(loaded->format));
  if (!request.chat_template().empty()) {
    auto chat = ChatTemplate::Replace(prepared.parts.chat.get(), request.chat_template());
    if (!chat.ok()) {
      return absl::Status(chat.status().code(),
                          absl::StrCat("field 'chat_template': ", chat.status().message()));
    }
    prepared.parts.chat = *std::move(chat);
  }
  if (request.generation_config() == "model") {
    absl::StatusOr<v1::SamplingOptions> sampling = SamplingDefaults(prepared.parts.generation);
    if (!sampling.ok()) {
      return absl::Status(
          sampling.status().code(),
          absl::StrCat("artifact '", request.artifact(), "': ", sampling.status().message()));
    }
    prepared.sampling_defaults = *std::move(sampling);
    if (const auto& unused = prepared.parts.generation.unused; !unused.empty()) {
      spdlog::warn("model {}: its generation_config.json has {}, which have no effect",
                   request.name(), absl::StrJoin(unused, ", "));
    }
  }
  return prepared;
}

v1::ServedModel ModelServer::Prepared::Describe(int context, absl::Time loaded) const {
  v1::ServedModel description = DescribeRequest(request, placements);
  description.set_parameters(parameters);
  description.set_kv_cache_tokens(kv_cache_tokens);
  description.set_max_sequence_length(context);
  description.set_vocabulary(parts.tokenizer->vocabulary());
  description.mutable_candidates()->Assign(candidates.begin(), candidates.end());
  description.set_loaded_unix_ms(absl::ToUnixMillis(loaded));
  *description.mutable_sampling_defaults() = sampling_defaults;
  if (request.generation_config() == "model") {
    const std::vector<std::string>& unused = parts.generation.unused;
    description.mutable_ignored_generation_fields()->Assign(unused.begin(), unused.end());
  }
  return description;
}

std::shared_ptr<LoadedModel> ModelServer::NewLoadedModel(const std::string& name) {
  return {new LoadedModel, [this, name](LoadedModel* last) {
            delete last;
            OnModelDestroyed(name);
          }};
}

absl::StatusOr<std::shared_ptr<LoadedModel>> ModelServer::LoadGraph(
    const v1::ServeModelRequest& request) {
  if (options_.graphs == nullptr) {
    return absl::UnimplementedError("this process serves no trained graphs");
  }
  absl::StatusOr<GraphLoader::Loaded> loaded = options_.graphs->Load(
      VersionsOf(request).at(request.artifact()), request.graph(), request.max_queue());
  if (!loaded.ok()) return loaded.status();
  std::shared_ptr<LoadedModel> model = NewLoadedModel(request.name());
  model->description = DescribeRequest(request, {});
  *model->description.mutable_graph() = std::move(loaded->graph);
  model->description.set_parameters(loaded->parameters);
  model->description.set_loaded_unix_ms(options_.clock->NowUnixMillis());
  model->predictor = std::move(loaded->predictor);
  model->clock = options_.clock;
  return model;
}

absl::StatusOr<std::shared_ptr<LoadedModel>> ModelServer::Load(v1::ServeModelRequest* request,
                                                               bool may_wait) {
  if (request->has_graph()) return LoadGraph(*request);
  absl::StatusOr<Prepared> prepared = LoadParts(*request, request->name(), may_wait);
  if (!prepared.ok()) return prepared.status();
  if (request->workers() == kAutoWorkers) {
    request->mutable_chosen()->Assign(prepared->placements.begin(), prepared->placements.end());
  }
  // Store the size that fits: after a restart the workers, or other models that share this
  // process's memory, may not be there yet to measure it against.
  if (request->kv_cache_tokens() == 0 &&
      (prepared->kv_cache_reduced || OnWorkers(prepared->placements))) {
    request->set_fitted_kv_cache_tokens(prepared->kv_cache_tokens);
  }
  const std::shared_ptr<LoadedModel> model = NewLoadedModel(request->name());
  model->description = prepared->Describe(0, options_.clock->Now());
  absl::StatusOr<std::unique_ptr<AsyncEngine>> engine =
      AsyncEngine::Create(std::move(prepared->parts), std::move(prepared->options));
  if (!engine.ok()) return engine.status();
  model->engine = *std::move(engine);
  model->describe = std::move(prepared->describe);
  model->description.set_max_sequence_length(model->engine->context());
  model->description.set_concurrent_steps(model->engine->concurrent_steps());
  model->description.set_embeddings(model->engine->embedding_size() > 0);
  model->grammars = std::make_unique<GrammarCache>(model->engine->shared_tokenizer());
  model->clock = options_.clock;
  return model;
}

}  // namespace espalier
