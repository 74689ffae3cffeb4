#include "server/http/ollama/models_route.h"

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/sha256.h"
#include "server/http/json_reader.h"
#include "server/http/ollama/ollama_formatter.h"
#include "server/http/ollama/ollama_request.h"
#include "server/http/ollama/served_name.h"
#include "server/http/send_error.h"
#include "serving/chat_template/chat_template.h"
#include "serving/output_parsers/reasoning_parser.h"

namespace espalier::ollama {
namespace {

using json = nlohmann::ordered_json;

constexpr char kApiVersion[] = "0.12.11";  // of Ollama, the first with logprobs
// Served models do not expire.
constexpr char kNever[] = "9999-12-31T23:59:59Z";

void SendJson(HttpResponder& responder, const json& object) {
  responder.Send(200, "application/json", openai::Dump(object));
}

// "435.2K", "1.1B".
std::string ParameterSize(int64_t count) {
  const double number = static_cast<double>(count);
  if (number >= 1e9) return absl::StrFormat("%.1fB", number / 1e9);
  if (number >= 1e6) return absl::StrFormat("%.2fM", number / 1e6);
  if (number >= 1e3) return absl::StrFormat("%.2fK", number / 1e3);
  return absl::StrCat(count);
}

// Bytes of the parameters in the format of most matrices.
int64_t WeightBytes(const v1::ServedModel& model) {
  static const auto* const bits = new std::map<std::string, int>{
      {"f32", 32}, {"bf16", 16}, {"f16", 16}, {"int8", 8}, {"int4", 4}};
  const auto format = bits->find(model.weights());
  return model.parameters() * (format == bits->end() ? 32 : format->second) / 8;
}

json DetailsOf(const v1::ServedModel& model, const std::string& parent) {
  return {{"parent_model", parent},
          {"format", ""},
          {"family", ""},
          {"families", json::array()},
          {"parameter_size", ParameterSize(model.parameters())},
          {"quantization_level", absl::AsciiStrToUpper(model.weights())}};
}

// One model, or one of its adapters, as both lists have it.
json EntryOf(const v1::ServedModel& model, const v1::LoraAdapter* adapter) {
  const std::string name = TaggedName(adapter == nullptr ? model.name() : adapter->name());
  return {{"name", name},
          {"model", name},
          {"modified_at", TimeText(absl::FromUnixMillis(model.loaded_unix_ms()))},
          {"size", WeightBytes(model)},
          {"digest", Sha256Hex(absl::StrCat(model.artifact_version(), "\n", model.weights(), "\n",
                                            adapter == nullptr ? "" : adapter->artifact()))},
          {"details", DetailsOf(model, adapter == nullptr ? "" : TaggedName(model.name()))}};
}

// Calls `add` with each entry of models and adapters.
template <typename Add>
void ForEachEntry(const RouteContext& context, const Add& add) {
  for (const v1::ServedModel& model : context.models->ListFor(context.caller)) {
    add(model, EntryOf(model, nullptr));
    for (const v1::LoraAdapter& adapter : model.adapters()) add(model, EntryOf(model, &adapter));
  }
}

// Lines of a Modelfile: "temperature 0.6".
std::string ParametersOf(const LoadedModel& model) {
  const v1::SamplingOptions& defaults = model.description.sampling_defaults();
  std::string lines;
  const auto add = [&](const char* name, const auto& value) {
    absl::StrAppend(&lines, lines.empty() ? "" : "\n",
                    absl::StrFormat("%-30s %s", name, absl::StrCat(value)));
  };
  add("num_ctx", model.engine->context());
  if (defaults.has_temperature()) add("temperature", defaults.temperature());
  if (defaults.has_top_k()) add("top_k", defaults.top_k());
  if (defaults.has_top_p()) add("top_p", defaults.top_p());
  if (defaults.has_min_p()) add("min_p", defaults.min_p());
  if (defaults.has_typical_p()) add("typical_p", defaults.typical_p());
  if (defaults.has_repetition_penalty()) add("repeat_penalty", defaults.repetition_penalty());
  for (const std::string& stop : model.engine->generation().stop_strings) {
    add("stop", openai::Dump(stop));
  }
  return lines;
}

json CapabilitiesOf(const LoadedModel& model) {
  json out = {"completion"};
  if (model.description.embeddings()) out.push_back("embedding");
  const ChatTemplate* chat = model.engine->chat();
  if (chat == nullptr) return out;
  const std::string& source = chat->Source(/*with_tools=*/true);
  if (absl::StrContains(source, "tools")) out.push_back("tools");
  if (!ReasoningTagsFor(source).empty() || absl::StrContains(source, "enable_thinking")) {
    out.push_back("thinking");
  }
  return out;
}

}  // namespace

void ListTags(const HttpRequest&, const RouteContext& context,
              std::shared_ptr<HttpResponder> responder) {
  json models = json::array();
  ForEachEntry(context,
               [&](const v1::ServedModel&, json entry) { models.push_back(std::move(entry)); });
  SendJson(*responder, {{"models", std::move(models)}});
}

void ListRunning(const HttpRequest&, const RouteContext& context,
                 std::shared_ptr<HttpResponder> responder) {
  json models = json::array();
  ForEachEntry(context, [&](const v1::ServedModel& model, json entry) {
    if (!AnswersRequests(model)) return;
    entry.erase("modified_at");
    entry["expires_at"] = kNever;
    entry["context_length"] = model.max_sequence_length();
    models.push_back(std::move(entry));
  });
  SendJson(*responder, {{"models", std::move(models)}});
}

void Show(const HttpRequest& http, const RouteContext& context,
          std::shared_ptr<HttpResponder> responder) {
  std::string name;
  if (const auto error = ParseShow(http.body, &name)) {
    return SendError(*responder, *error, {}, &MessageAlone);
  }
  const absl::StatusOr<ModelServer::Target> target =
      context.models->Resolve(ServedName(context, name), context.caller);
  if (!target.ok()) return SendError(*responder, target.status(), &MessageAlone);
  const LoadedModel& model = *target->model;
  const v1::ServedModel& description = model.description;
  const ChatTemplate* chat = model.engine->chat();
  SendJson(*responder,
           {{"modelfile", absl::StrCat("FROM ", description.artifact(), "\n")},
            {"parameters", ParametersOf(model)},
            {"template", chat == nullptr ? "" : chat->Source(/*with_tools=*/false)},
            {"details",
             DetailsOf(description, target->adapter.empty() ? "" : TaggedName(description.name()))},
            {"model_info",
             {{"general.architecture", "espalier"},
              {"general.parameter_count", description.parameters()},
              {"espalier.context_length", model.engine->context()},
              {"espalier.embedding_length", model.engine->embedding_size()},
              {"espalier.vocab_size", description.vocabulary()}}},
            {"capabilities", CapabilitiesOf(model)},
            {"modified_at", TimeText(absl::FromUnixMillis(description.loaded_unix_ms()))}});
}

void ApiVersion(const HttpRequest&, const RouteContext&, std::shared_ptr<HttpResponder> responder) {
  SendJson(*responder, {{"version", kApiVersion}});
}

void Running(const HttpRequest&, const RouteContext&, std::shared_ptr<HttpResponder> responder) {
  responder->Send(200, "text/plain; charset=utf-8", "Ollama is running");
}

void RefuseManagement(const HttpRequest& http, const RouteContext&,
                      std::shared_ptr<HttpResponder> responder) {
  constexpr std::pair<absl::string_view, const char*> kInstead[] = {
      {"/api/pull",
       "models come from no hub: `espalier serve FOLDER` or `espalier serve FILE.gguf` uploads and "
       "serves one"},
      {"/api/push",
       "models go to no hub: `espalier models download NAME FOLDER` copies one to the client"},
      {"/api/create",
       "models are not made of Modelfiles: `espalier serve ARTIFACT --name=NAME` serves one, "
       "--chat-template and --adapter change it, `espalier models quantize` packs it"},
      {"/api/copy",
       "models are not copied: `espalier serve ARTIFACT --name=NAME` serves one under a second "
       "name"},
      {"/api/delete",
       "models are not deleted here: `espalier unserve NAME` ends serving, `espalier models delete "
       "NAME` deletes the files"},
      {"/api/blobs", "files are not uploaded here: `espalier models upload NAME PATH` does that"},
  };
  for (const auto& [path, instead] : kInstead) {
    if (!absl::StartsWith(http.path, path)) continue;
    return SendError(*responder, absl::UnimplementedError(absl::StrCat(path, ": ", instead)),
                     &MessageAlone);
  }
}

}  // namespace espalier::ollama
