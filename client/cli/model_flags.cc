#include "client/cli/model_flags.h"

#include <fstream>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/nearest.h"
#include "client/cli/loss_flags.h"
#include "client/terminal/text.h"
#include "ops/graph/graph_proto.h"
#include "ops/operators/register_all.h"

namespace espalier {
namespace {

LlamaConfig LlamaPreset(int64_t hidden, int64_t layers, int64_t heads, int64_t kv_heads,
                        int64_t intermediate) {
  LlamaConfig c;
  c.hidden_size = hidden;
  c.num_layers = layers;
  c.num_heads = heads;
  c.num_kv_heads = kv_heads;
  c.head_dim = hidden / heads;
  c.intermediate_size = intermediate;
  c.max_position_embeddings = 2048;
  return c;
}

// Byte-level models with 256 tokens.
const std::map<std::string, LlamaConfig>& Presets() {
  static const auto* presets = new std::map<std::string, LlamaConfig>{
      {"tiny", LlamaPreset(64, 2, 4, 2, 176)},      // 0.1 M parameters
      {"ssm", LlamaPreset(128, 2, 4, 2, 352)},      // 0.4 M: drafts for llm
      {"llm", LlamaPreset(256, 6, 8, 4, 704)},      // 4.6 M
      {"medium", LlamaPreset(512, 8, 8, 4, 1408)},  // 24 M
  };
  return *presets;
}

std::string PresetNames() {
  return absl::StrJoin(Presets(), ", ",
                       [](std::string* out, const auto& p) { out->append(p.first); });
}

}  // namespace

absl::StatusOr<v1::Graph> ReadGraph(const std::string& path) {
  auto bytes = ReadFile(path);
  if (!bytes.ok()) return bytes.status();
  v1::Graph graph;
  if (!graph.ParseFromString(*bytes) || graph.nodes_size() == 0) {
    return UsageError(absl::StrCat(Printable(path),
                                   " holds no graph; accepted: a binary "
                                   "espalier.v1.Graph with nodes"));
  }
  return graph;
}

std::vector<FlagSpec> ModelFlags() {
  std::vector<FlagSpec> flags = {
      {"model", FlagType::kText, "MODEL",
       "llama:PRESET, llama:KEY=VALUE,... or FILE.json, a config.json; presets: " + PresetNames()},
      {"graph", FlagType::kText, "FILE", "use a graph protobuf instead (see the client library)"},
      {"onnx", FlagType::kText, "FILE",
       "use an ONNX file instead, with its weights inside or beside it, a folder that holds one, "
       "or "
       "artifact:NAME"},
      {"sequence-length", FlagType::kInt, "N",
       "tokens of an example: of a text (128), or of arrays (theirs)", 0, 1, 1 << 20},
  };
  for (FlagSpec& flag : LossFlags()) flags.push_back(std::move(flag));
  return flags;
}

absl::StatusOr<LlamaConfig> ParseLlama(absl::string_view text) {
  LlamaConfig config;
  std::map<std::string, int64_t*> sizes = {{"vocab", &config.vocab_size},
                                           {"hidden", &config.hidden_size},
                                           {"intermediate", &config.intermediate_size},
                                           {"layers", &config.num_layers},
                                           {"heads", &config.num_heads},
                                           {"kv_heads", &config.num_kv_heads},
                                           {"head_dim", &config.head_dim},
                                           {"positions", &config.max_position_embeddings}};
  std::vector<std::string> keys = {"theta", "eps", "tied"};
  for (const auto& [key, unused] : sizes) keys.push_back(key);

  bool sized = false;  // derive intermediate, kv_heads and head_dim from the others unless given
  std::map<std::string, bool> given;
  const std::vector<std::string> parts = absl::StrSplit(std::string(text), ',', absl::SkipEmpty());
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::vector<std::string> pair = absl::StrSplit(parts[i], absl::MaxSplits('=', 1));
    if (pair.size() == 1) {
      auto preset = Presets().find(pair[0]);
      if (i != 0 || preset == Presets().end()) {
        return UsageError(absl::StrCat("llama model \"", Printable(pair[0]), "\": accepted are ",
                                       PresetNames(), ", or KEY=VALUE with ",
                                       absl::StrJoin(keys, ", ")));
      }
      config = preset->second;
      sized = true;
      continue;
    }
    const auto& [key, value] = std::pair(pair[0], pair[1]);
    bool good = false;
    if (auto size = sizes.find(key); size != sizes.end()) {
      good = absl::SimpleAtoi(value, size->second);
    } else if (key == "theta") {
      good = absl::SimpleAtod(value, &config.rope_theta);
    } else if (key == "eps") {
      good = absl::SimpleAtod(value, &config.rms_norm_eps);
    } else if (key == "tied") {
      good = absl::SimpleAtob(value, &config.tie_word_embeddings);
    } else {
      const std::string near = Nearest(key, keys);
      return UsageError(
          absl::StrCat("llama model: unknown key \"", Printable(key),
                       "\"; accepted: ", absl::StrJoin(keys, ", "),
                       near.empty() ? "" : absl::StrCat("; did you mean ", near, "?")));
    }
    if (!good) {
      return UsageError(absl::StrCat("llama model: ", key, " is \"", Printable(value),
                                     "\", which is no ",
                                     key == "tied" ? "true or false" : "number"));
    }
    given[key] = true;
  }
  if (!sized && !given["kv_heads"]) config.num_kv_heads = config.num_heads;
  if (config.num_heads > 0 && !given["head_dim"] && (!sized || given["heads"] || given["hidden"])) {
    if (config.hidden_size % config.num_heads != 0) {
      return UsageError(absl::StrCat("llama model: hidden=", config.hidden_size,
                                     " is no multiple of heads=", config.num_heads,
                                     "; change one, or give head_dim"));
    }
    config.head_dim = config.hidden_size / config.num_heads;
  }
  if (!given["intermediate"] && (!sized || given["hidden"])) {
    // LLaMA's ratio: 8/3 of the hidden size, rounded up to a multiple of 16.
    config.intermediate_size = (config.hidden_size * 8 / 3 + 15) / 16 * 16;
  }
  if (absl::Status s = Validate(config); !s.ok()) return UsageError(std::string(s.message()));
  return config;
}

absl::StatusOr<ModelChoice> ChooseModel(const ParsedFlags& flags, bool byte_tokenizer) {
  const int given = flags.Has("model") + flags.Has("graph") + flags.Has("onnx");
  if (given != 1) {
    return UsageError(
        absl::StrCat(given == 0 ? "which model?" : "more than one model;",
                     " Give one of --model, --graph, --onnx; for example --model=llama:tiny"));
  }
  if (!flags.Has("onnx")) {
    for (const char* head : {"loss", "loss-output", "metrics"}) {
      if (!flags.Has(head)) continue;
      return UsageError(absl::StrCat(
          "--", head, " needs --onnx; other models define their own loss and metrics"));
    }
  }
  ModelChoice choice;
  if (flags.Has("graph")) {
    auto graph = ReadGraph(flags.Text("graph"));
    if (!graph.ok()) return graph.status();
    choice.graph = *std::move(graph);
    choice.sequence_length = static_cast<int>(flags.Int("sequence-length", 0));
    return choice;
  }
  if (flags.Has("onnx")) {
    choice.onnx_path = flags.Text("onnx");
    const bool local = !absl::StartsWith(choice.onnx_path, "artifact:");
    if (local && !std::ifstream(choice.onnx_path))
      return UsageError(absl::StrCat("cannot read ", choice.onnx_path));
    choice.sequence_length = static_cast<int>(flags.Int("sequence-length", 0));
    return choice;
  }
  choice.sequence_length = static_cast<int>(flags.Int("sequence-length", 128));
  auto config = ModelConfig(flags.Text("model"), choice.sequence_length, byte_tokenizer);
  if (!config.ok()) return config.status();
  OpRegistry registry;
  RegisterAllOperators(registry);
  auto model = ReadModel(*config);
  if (!model.ok()) return model.status();
  auto training = BuildTraining(registry, *model, choice.sequence_length);
  if (!training.ok()) return training.status();
  choice.graph = ToProto(training->graph);
  return choice;
}

absl::StatusOr<std::string> ModelConfig(const std::string& model, int sequence_length,
                                        bool byte_tokenizer) {
  std::string config, place = "the model";
  absl::string_view rest = model;
  const bool llama = absl::ConsumePrefix(&rest, "llama:");
  if (absl::EndsWith(rest, ".json")) {
    place = std::string(rest);
    auto text = ReadFile(place);
    if (!text.ok()) return text.status();
    config = *std::move(text);
  } else if (llama) {
    auto sizes = ParseLlama(rest);
    if (!sizes.ok()) return sizes.status();
    if (!byte_tokenizer) sizes->tokenizer.clear();
    config = ToConfigJson(*sizes);
  } else {
    return UsageError(absl::StrCat("--model is \"", Printable(model),
                                   "\"; accepted: llama:PRESET (", PresetNames(),
                                   "), llama:KEY=VALUE,... or FILE.json, the config.json of a "
                                   "model of any dense family"));
  }
  OpRegistry registry;
  RegisterAllOperators(registry);
  auto read = ReadModel(config);
  absl::Status status =
      read.ok() ? BuildTraining(registry, *read, sequence_length).status() : read.status();
  if (status.ok()) return config;
  return UsageError(absl::StrCat(Printable(place), ": ", Printable(status.message())));
}

}  // namespace espalier
