#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/command.h"
#include "client/cli/proto_json.h"
#include "client/cli/serving_flags.h"
#include "client/cli/transfer.h"
#include "client/terminal/table.h"

namespace espalier {
namespace {

absl::Status FillAdapters(const ParsedFlags& flags, v1::ServeModelRequest* request) {
  for (const std::string& text : flags.Values("adapter")) {
    const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
    if (parts.size() != 2 || parts[0].empty() || parts[1].empty()) {
      return UsageError(absl::StrCat("--adapter is \"", Printable(text),
                                     "\"; accepted: NAME=ARTIFACT, NAME as requests call it"));
    }
    v1::LoraAdapter* const adapter = request->add_adapters();
    adapter->set_name(parts[0]);
    adapter->set_artifact(parts[1]);
  }
  return absl::OkStatus();
}

std::string AdapterNames(const v1::ServedModel& model) {
  return absl::StrJoin(model.adapters(), ", ",
                       [](std::string* out, const auto& a) { out->append(Printable(a.name())); });
}

// "x f32[64], mask bool[64]"
std::string TensorsText(const google::protobuf::RepeatedPtrField<v1::GraphTensor>& tensors) {
  return absl::StrJoin(tensors, ", ", [](std::string* out, const v1::GraphTensor& tensor) {
    absl::StrAppend(out, Printable(tensor.name()), " ",
                    absl::AsciiStrToLower(v1::DataType_Name(tensor.example().dtype())), "[",
                    absl::StrJoin(tensor.example().dims(), ", "), "]");
  });
}

// What was said of a graph that is now served.
void ShowGraph(Context& context, const v1::ServedModel& model) {
  const v1::GraphBatching& batching = model.graph().batching();
  context.out() << "serving " << context.style().Bold(Printable(model.name())) << ": "
                << FormatCount(static_cast<double>(model.parameters()))
                << " parameters, batches of up to " << batching.max_batch_size();
  if (batching.max_queue_delay_microseconds() > 0) {
    context.out() << ", for which a request waits up to "
                  << FormatSeconds(1e-6 *
                                   static_cast<double>(batching.max_queue_delay_microseconds()));
  }
  context.out() << "\ninputs:  " << TensorsText(model.graph().inputs())
                << "\noutputs: " << TensorsText(model.graph().outputs())
                << "\ntry it: espalier predict " << Printable(model.name()) << " -d x.npz -o y.npz";
  for (const std::string& note : model.graph().notes()) {
    context.out() << "\nnote: " << Printable(note);
  }
  context.out() << std::endl;
}

bool OnWorkers(const v1::ServedModel& model) { return model.tensor_parallel() > 0; }

constexpr char kCoordinator[] = "the coordinator";

// "2 x 1 on w1, w2": tensor by pipeline parallel.
std::string PlaceText(const v1::ModelPlacement& place) {
  if (place.tensor_parallel() == 0) return kCoordinator;
  std::string text = place.tensor_parallel() * place.pipeline_parallel() == 1
                         ? ""
                         : absl::StrCat(place.tensor_parallel(), " x ", place.pipeline_parallel(),
                                        place.workers().empty() ? "" : " on ");
  absl::StrAppend(&text, Printable(absl::StrJoin(place.workers(), ", ")));
  return text.empty() ? "one worker" : text;
}

// Prints the placements that --workers=auto compared.
void PrintCandidates(Context& context, const v1::ServedModel& model) {
  if (model.candidates().empty()) return;
  Table table({{""},
               {"model", Align::kLeft, true},
               {"drafts", Align::kLeft, true},
               {"step", Align::kRight},
               {"drafting", Align::kRight},
               {"tokens/s", Align::kRight},
               {"largest part", Align::kRight},
               {"", Align::kLeft, true}});
  for (const v1::PlacementCandidate& c : model.candidates()) {
    std::vector<std::string> ssms;
    for (const v1::ModelPlacement& ssm : c.ssms()) ssms.push_back(PlaceText(ssm));
    const bool fits = c.refused().empty();
    const std::string steps = c.concurrent_steps() > 1
                                  ? absl::StrCat(", ", c.concurrent_steps(), " concurrent steps")
                                  : "";
    table.Row({c.chosen() ? "*" : "", PlaceText(c.llm()) + steps, absl::StrJoin(ssms, "; "),
               FormatSeconds(c.llm_seconds()),
               fits && c.ssms_size() > 0 ? FormatSeconds(c.draft_seconds()) : "",
               fits ? FormatCount(c.tokens_per_second()) : "",
               FormatBytes(static_cast<double>(c.peak_device_bytes())), Printable(c.refused())});
  }
  context.out() << "\nplacements by predicted tokens per second (* chosen)\n"
                << table.Render(context.terminal());
}

// "temperature 0.6, top_p 0.9"; empty if nothing is set.
std::string SamplingText(const v1::SamplingOptions& sampling) {
  std::vector<std::string> parts;
  if (sampling.has_temperature()) {
    parts.push_back(absl::StrCat("temperature ", sampling.temperature()));
  }
  if (sampling.has_top_p()) parts.push_back(absl::StrCat("top_p ", sampling.top_p()));
  if (sampling.has_top_k()) parts.push_back(absl::StrCat("top_k ", sampling.top_k()));
  if (sampling.has_min_p()) parts.push_back(absl::StrCat("min_p ", sampling.min_p()));
  if (sampling.has_typical_p()) parts.push_back(absl::StrCat("typical_p ", sampling.typical_p()));
  if (sampling.has_repetition_penalty()) {
    parts.push_back(absl::StrCat("repetition_penalty ", sampling.repetition_penalty()));
  }
  return absl::StrJoin(parts, ", ");
}

// "small, tiny (up to 512 tokens)".
std::string SsmNames(const v1::ServedModel& model) {
  std::vector<std::string> names;
  for (int s = 0; s < model.ssm_artifacts_size(); ++s) {
    names.push_back(Printable(model.ssm_artifacts(s)));
    const int most = s < model.ssm_placements_size() ? model.ssm_placements(s).draft_tokens() : 0;
    if (most > 0) absl::StrAppend(&names.back(), " (up to ", most, " tokens)");
  }
  return absl::StrJoin(names, ", ");
}

// The state of the LLM, and of SSMs that are not ready.
std::string StateText(const v1::ServedModel& model) {
  std::string out = model.state().empty() ? "ready" : model.state();
  for (int s = 0; s < std::min(model.ssm_artifacts_size(), model.ssm_placements_size()); ++s) {
    const std::string& state = model.ssm_placements(s).state();
    if (state.empty() || state == "ready") continue;
    absl::StrAppend(&out, "; ", model.ssm_artifacts(s), " ", state);
  }
  return out;
}

absl::Status ListServedModels(Context& context, Client* client) {
  auto models = client->ListServed();
  if (!models.ok()) return models.status();
  if (context.json()) {
    nlohmann::ordered_json json;
    json["models"] = nlohmann::ordered_json::array();
    for (const auto& m : *models) json["models"].push_back(ToJson(m));
    context.Document(json);
    return absl::OkStatus();
  }
  Table table({{"model"},
               {"artifact"},
               {"drafts by"},
               {"expansion"},
               {"adapters"},
               {"parameters", Align::kRight},
               {"context", Align::kRight},
               {"on"},
               {"state"}});
  for (const auto& m : *models) {
    table.Row({Printable(m.name()), Printable(m.artifact()), SsmNames(m),
               absl::StrJoin(m.expansion(), ","), AdapterNames(m),
               FormatCount(static_cast<double>(m.parameters())),
               m.has_graph() ? "" : absl::StrCat(m.max_sequence_length()),
               OnWorkers(m) ? Printable(absl::StrJoin(m.workers(), ", ")) : "the coordinator",
               Printable(StateText(m))});
  }
  context.out() << (table.empty() ? "no models are served; serve one: espalier serve ARTIFACT\n"
                                  : table.Render(context.terminal()))
                << std::flush;
  return absl::OkStatus();
}

std::vector<FlagSpec> ServeFlags() {
  std::vector<FlagSpec> flags = ServingFlags();
  flags.push_back({"name", FlagType::kText, "NAME",
                   "model name in requests (the artifact's name; the folder's or file's)"});
  flags.push_back({"generation-config", FlagType::kText, "WHICH",
                   "default sampling of requests: model, from its generation_config.json (the "
                   "default), or none"});
  flags.push_back({"chat-template", FlagType::kText, "FILE",
                   "Jinja chat template, in place of the model's own"});
  flags.push_back({"max-queue", FlagType::kInt, "N", "maximum number of waiting requests (256)", 0,
                   1, 1 << 24});
  flags.push_back({"max-batch",
                   FlagType::kInt,
                   "N",
                   "trained graph: maximum number of examples in a batch (32)",
                   0,
                   1,
                   1 << 16,
                   false,
                   {"max-batch-size"}});
  flags.push_back({"max-delay-ms", FlagType::kNumber, "MS",
                   "trained graph: how long a request waits for others to fill its batch (0)", 0, 0,
                   10000});
  return flags;
}

// Uploads what the command line names by its path.
absl::Status ResolveModels(Context& context, Client* client, v1::ServeModelRequest* request,
                           UploadedModels* uploaded) {
  const std::string given = context.flags().positional()[0];
  std::string stem;
  auto artifact = ModelArtifact(context, client, given, &stem, uploaded);
  if (!artifact.ok()) return artifact.status();
  request->set_artifact(*artifact);
  if (request->name().empty()) request->set_name(stem);
  for (std::string& ssm : *request->mutable_ssm_artifacts()) {
    auto name = ModelArtifact(context, client, ssm, &stem, uploaded);
    if (!name.ok()) return name.status();
    ssm = *name;
  }
  return absl::OkStatus();
}

// What it has uploaded for a model that is refused is deleted again.
absl::StatusOr<v1::ServedModel> ServeModel(Context& context, Client* client,
                                           v1::ServeModelRequest request) {
  UploadedModels uploaded;
  const absl::Status resolved = ResolveModels(context, client, &request, &uploaded);
  absl::StatusOr<v1::ServedModel> model =
      resolved.ok() ? client->Serve(request) : absl::StatusOr<v1::ServedModel>(resolved);
  DeleteRefused(context, client, uploaded, model.status());
  return model;
}

absl::Status RunServe(Context& context) {
  if (absl::Status s = CheckArguments(context, 0, 1, "one artifact, folder, .gguf or .onnx file");
      !s.ok())
    return s;
  const ParsedFlags& flags = context.flags();
  if (flags.positional().empty()) {
    for (const FlagSpec& flag : ServeFlags()) {
      if (!flags.Has(flag.name)) continue;
      return UsageError(absl::StrCat("--", flag.name,
                                     " needs a model to serve: espalier serve ARTIFACT --",
                                     flag.name, "..."));
    }
  }
  v1::ServeModelRequest request;
  if (absl::Status s = FillServing(flags, &request); !s.ok()) return s;
  auto client = context.client();
  if (!client.ok()) return client.status();
  if (flags.positional().empty()) return ListServedModels(context, *client);

  request.set_name(flags.Text("name"));
  request.set_generation_config(flags.Text("generation-config"));
  if (flags.Has("chat-template")) {
    auto text = ReadNonemptyFile(flags.Text("chat-template"));
    if (!text.ok()) return text.status();
    request.set_chat_template(*text);
  }
  request.set_max_queue(static_cast<int32_t>(flags.Int("max-queue", 0)));
  if (flags.Has("max-batch")) {
    request.mutable_graph()->set_max_batch_size(static_cast<int32_t>(flags.Int("max-batch", 0)));
  }
  if (flags.Has("max-delay-ms")) {
    request.mutable_graph()->set_max_queue_delay_microseconds(
        static_cast<int64_t>(std::llround(1000 * flags.Number("max-delay-ms", 0))));
  }
  auto model = ServeModel(context, *client, std::move(request));
  if (!model.ok()) {
    std::error_code error;
    const std::string& given = flags.positional()[0];
    if (!absl::IsNotFound(model.status()) || !std::filesystem::is_directory(given, error)) {
      return model.status();
    }
    return absl::NotFoundError(absl::StrCat(model.status().message(),
                                            "; to serve the folder of this name: espalier serve ./",
                                            Printable(given)));
  }
  if (context.json()) {
    context.Document(ToJson(*model));
    return absl::OkStatus();
  }
  if (model->has_graph()) {
    ShowGraph(context, *model);
    return absl::OkStatus();
  }
  context.out() << "serving " << context.style().Bold(Printable(model->name())) << ": "
                << FormatCount(static_cast<double>(model->parameters()))
                << " parameters, context of " << model->max_sequence_length()
                << " tokens, KV cache of "
                << FormatCount(static_cast<double>(model->kv_cache_tokens()));
  if (model->weights() != "f32") context.out() << ", matrices in " << Printable(model->weights());
  if (model->kv_cache() != "f32") {
    context.out() << ", KV cache in " << Printable(model->kv_cache());
  }
  if (model->resident_weight_bytes() > 0) {
    context.out() << ", weights stream through "
                  << FormatBytes(static_cast<double>(model->resident_weight_bytes()));
  }
  if (model->ssm_artifacts_size() > 0) {
    context.out() << ", trees "
                  << (model->tune_speculation() ? std::string("chosen at each step")
                                                : absl::StrJoin(model->expansion(), ","))
                  << " drafted by " << SsmNames(*model);
  }
  if (model->ngram_depth() > 0) {
    context.out() << ", n-gram drafts of up to " << model->ngram_depth() << " tokens";
  }
  if (model->adapters_size() > 0) context.out() << ", adapters " << AdapterNames(*model);
  if (model->workers_size() > 0) {
    context.out() << ", on " << (model->workers_size() == 1 ? "worker " : "workers ")
                  << Printable(absl::StrJoin(model->workers(), ", "));
  }
  if (model->concurrent_steps() > 1)
    context.out() << ", " << model->concurrent_steps() << " concurrent steps";
  if (const std::string defaults = SamplingText(model->sampling_defaults()); !defaults.empty()) {
    context.out() << "\nrequests default to the model's own " << defaults;
  }
  if (model->ignored_generation_fields_size() > 0) {
    context.out() << "\nwarning: the model's generation_config.json has "
                  << Printable(absl::StrJoin(model->ignored_generation_fields(), ", "))
                  << ", which has no effect here: answers may differ from what its authors intend";
  }
  for (int i = 0; i < model->ssm_placements_size(); ++i) {
    if (model->ssm_placements(i).tensor_parallel() == 0) continue;
    context.out() << "\n"
                  << Printable(model->ssm_artifacts(i)) << " drafts on "
                  << PlaceText(model->ssm_placements(i));
  }
  PrintCandidates(context, *model);
  context.out() << "\ntry it: espalier generate " << Printable(model->name())
                << " \"In the beginning\"" << std::endl;
  return absl::OkStatus();
}

absl::Status RunUnserve(Context& context) {
  if (absl::Status s = CheckArguments(context, 1, 1, "a model's name"); !s.ok()) return s;
  auto client = context.client();
  if (!client.ok()) return client.status();
  const std::string& name = context.flags().positional()[0];
  if (absl::Status s = (*client)->Unserve(name); !s.ok()) return s;
  if (context.json()) {
    nlohmann::ordered_json json;
    json["unserved"] = name;
    context.Document(json);
  } else {
    context.out() << Printable(name) << " is no longer served" << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<int>> ParseExpansion(const std::string& text) {
  std::vector<int> expansion;
  for (absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    int children = 0;
    if (!absl::SimpleAtoi(part, &children) || children < 1) {
      return UsageError(
          absl::StrCat("--expansion is \"", Printable(text),
                       "\"; accepted: children per depth, each at least 1, as 1,1,3,1,1"));
    }
    expansion.push_back(children);
  }
  return expansion;
}

absl::Status FillServing(const ParsedFlags& flags, v1::ServeModelRequest* request) {
  absl::StatusOr<std::vector<int>> expansion = ParseExpansion(flags.Text("expansion"));
  if (!expansion.ok()) return expansion.status();
  request->mutable_expansion()->Assign(expansion->begin(), expansion->end());
  if (request->expansion_size() > 0 && !flags.Has("ssm")) {
    return UsageError("--expansion needs --ssm=ARTIFACT");
  }
  const auto number = [&](const char* name) { return static_cast<int32_t>(flags.Int(name, 0)); };
  for (const std::string& ssm : flags.Values("ssm")) request->add_ssm_artifacts(ssm);
  request->set_max_sequence_length(number("max-sequence-length"));
  request->set_max_requests_per_batch(number("max-requests-per-batch"));
  request->set_max_tokens_per_batch(number("max-tokens-per-batch"));
  request->set_weights(flags.Text("weights"));
  request->set_ssm_weights(flags.Text("ssm-weights"));
  request->set_short_ssms(flags.Has("short-ssms"));
  if (flags.Has("tune") && flags.Has("no-tune")) return UsageError("--tune or --no-tune, not both");
  if (flags.Has("tune") && request->expansion_size() > 0) {
    return UsageError(
        "--tune chooses the shape of the trees at each step, --expansion gives it: drop one of "
        "the two");
  }
  if (flags.Has("tune") || flags.Has("no-tune")) request->set_tune_speculation(flags.Has("tune"));
  if (flags.Has("ngram")) request->set_ngram_depth(number("ngram"));
  request->set_no_prefix_cache(flags.Has("no-prefix-cache"));
  request->set_kv_cache(flags.Text("kv-cache"));
  request->set_kv_cache_tokens(flags.Int("kv-cache-tokens", 0));
  request->set_resident_weight_bytes(flags.Int("resident-weights", 0));
  request->set_tensor_parallel(number("tensor-parallel"));
  request->set_pipeline_parallel(number("pipeline-parallel"));
  request->set_concurrent_steps(number("concurrent-steps"));
  request->set_ssm_tensor_parallel(number("ssm-tensor-parallel"));
  request->set_ssm_pipeline_parallel(number("ssm-pipeline-parallel"));
  request->set_workers(flags.Text("workers"));
  request->set_expected_requests(number("expected-requests"));
  return FillAdapters(flags, request);
}

std::vector<FlagSpec> ServingFlags() {
  return {
      {"ssm", FlagType::kText, "ARTIFACT", "a small speculative model", 0, 0, 0, true},
      {"expansion", FlagType::kText, "LIST",
       "children per depth of the token tree, without --tune (chosen at each step; with --no-tune "
       "1,1,3,1,1)"},
      {"weights", FlagType::kText, "FORMAT",
       "weight format: f32, bf16, f16, int8, int4 (each tensor as in the files)"},
      {"ssm-weights", FlagType::kText, "FORMAT", "the same for the small models"},
      {"short-ssms", FlagType::kSwitch, "",
       "allow small models with a shorter context than the served one: each drafts as far as its "
       "own context reaches (otherwise refused)"},
      {"kv-cache", FlagType::kText, "FORMAT",
       "KV cache format: f32 (the default), f16, bf16, int8"},
      {"kv-cache-tokens", FlagType::kInt, "N",
       "KV cache size in tokens, over all requests: if it is too small for them, some wait or are "
       "recomputed (enough for all at full length)",
       0, 1, INT32_MAX},
      {"resident-weights", FlagType::kInt, "BYTES",
       "bytes of weights that stay on the device, or on each worker of a split model; the others "
       "are streamed from the host in every step, ahead of their use (all)",
       0, 1, int64_t{1} << 60},
      {"tune", FlagType::kSwitch, "",
       "choose the trees, or none, at each step for the highest throughput (the default without "
       "--expansion and --pipeline-parallel)"},
      {"no-tune", FlagType::kSwitch, "",
       "draft at every step: trees of --expansion, and n-gram drafts of --ngram; without --ssm and "
       "--ngram plain decoding"},
      {"ngram", FlagType::kInt, "N",
       "n-gram drafts (prompt lookup) of up to N tokens; needs no small model (6 with --tune or "
       "by default with --ssm, where they pay off; otherwise 0)",
       0, 0, 64},
      {"no-prefix-cache", FlagType::kSwitch, "",
       "disable the prefix cache, and n-gram drafts from other answers"},
      {"adapter", FlagType::kText, "NAME=ARTIFACT",
       "a LoRA adapter (a PEFT folder), addressed by NAME in requests", 0, 0, 0, true},
      {"tensor-parallel", FlagType::kInt, "N",
       "run the model on workers with each layer split into N parts; without this and the next "
       "flag it runs in the coordinator's process",
       0, 1, 1024},
      {"pipeline-parallel", FlagType::kInt, "N",
       "run the model on workers with its layers split into N stages; with --tensor-parallel on "
       "the product of the two",
       0, 1, 1024},
      {"concurrent-steps", FlagType::kInt, "N",
       "steps in flight at once, each with its share of the requests (--pipeline-parallel; with "
       "--tune or small models on workers 1)",
       0, 1, 1024},
      {"ssm-tensor-parallel", FlagType::kInt, "N",
       "run each small model on N workers, split as by --tensor-parallel: idle workers or, if too "
       "few, those of the model and its other small models; without this and the next flag they "
       "run in the coordinator's process",
       0, 1, 1024},
      {"ssm-pipeline-parallel", FlagType::kInt, "N",
       "as --ssm-tensor-parallel, with the layers split into N stages", 0, 1, 1024},
      {"workers", FlagType::kText, "auto",
       "auto: choose placement and parallelism of the model and its small models for the highest "
       "throughput by the planner's costs; shows the alternatives"},
      {"expected-requests", FlagType::kInt, "N",
       "concurrent requests that --workers=auto assumes (--max-requests-per-batch)", 0, 1, 4096},
      {"max-sequence-length", FlagType::kInt, "N",
       "maximum length of prompt and answer together "
       "(the model's)",
       0, 1, 1 << 30},
      {"max-requests-per-batch", FlagType::kInt, "N", "maximum requests per step (16)", 0, 1,
       1 << 20},
      {"max-tokens-per-batch", FlagType::kInt, "N", "maximum tokens per step (256)", 0, 1, 1 << 24},
  };
}

Command ServeCommand() {
  Command c;
  c.name = "serve";
  c.summary =
      "serve a model, optionally with small models that draft token trees; alone: list served "
      "models";
  c.usage = "serve [ARTIFACT | FOLDER | FILE.gguf | FILE.onnx [--ssm=ARTIFACT]... [flags]]";
  c.description =
      "A folder in Hugging Face's layout, written with a slash (./tinyllama), a GGUF or an ONNX "
      "file is uploaded first, unless the coordinator has an artifact of this content; the model's "
      "name is the folder's or file's. So is one of --ssm. If the model is refused, what was "
      "uploaded for it is deleted again.";
  c.flags = ServeFlags();
  c.examples = {
      {"a folder or file that is not uploaded yet", "espalier serve ./tinyllama-q8_0.gguf"},
      {"with token trees", "espalier serve llm --ssm=ssm"},
      {"with token trees of a fixed shape", "espalier serve llm --ssm=ssm --expansion=1,1,3,1,1"},
      {"two adapters of one model",
       "espalier serve llm --adapter=poet=poems-lora --adapter=clerk=forms-lora"},
      {"over two workers", "espalier serve llm --tensor-parallel=2"},
      {"an ONNX file", "espalier serve resnet50.onnx"},
      {"a trained graph, with batches that fill for up to 2 ms",
       "espalier serve digits --max-batch=64 --max-delay-ms=2"},
      {"with the fastest placement", "espalier serve llm --ssm=ssm --workers=auto"},
      {"list served models", "espalier serve"}};
  c.run = RunServe;
  return c;
}

Command UnserveCommand() {
  Command c;
  c.name = "unserve";
  c.summary = "stop serving a model";
  c.usage = "unserve NAME";
  c.examples = {{"free its memory", "espalier unserve llm"}};
  c.run = RunUnserve;
  return c;
}

}  // namespace espalier
