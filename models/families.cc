// The list of families. A new one is a file that defines LanguageModel Read<Name>(ConfigReader&),
// and a line here.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "models/family.h"
#include "models/quantize.h"
#include "models/serving_builder.h"
#include "ops/kernel/packed_weights.h"

namespace espalier {

// Function name, "architectures", "model_type".
#define ESPALIER_FAMILIES(FAMILY)                                  \
  FAMILY(Llama, "LlamaForCausalLM", "llama")                       \
  FAMILY(Mistral, "MistralForCausalLM", "mistral")                 \
  FAMILY(Mistral3, "Mistral3ForConditionalGeneration", "mistral3") \
  FAMILY(Qwen2, "Qwen2ForCausalLM", "qwen2")                       \
  FAMILY(Qwen3, "Qwen3ForCausalLM", "qwen3")                       \
  FAMILY(Qwen3Moe, "Qwen3MoeForCausalLM", "qwen3_moe")             \
  FAMILY(Mixtral, "MixtralForCausalLM", "mixtral")                 \
  FAMILY(Gemma, "GemmaForCausalLM", "gemma")                       \
  FAMILY(Gemma2, "Gemma2ForCausalLM", "gemma2")                    \
  FAMILY(Gemma3, "Gemma3ForCausalLM", "gemma3_text")               \
  FAMILY(Gemma3Images, "Gemma3ForConditionalGeneration", "gemma3") \
  FAMILY(Phi3, "Phi3ForCausalLM", "phi3")                          \
  FAMILY(Opt, "OPTForCausalLM", "opt")                             \
  FAMILY(Falcon, "FalconForCausalLM", "falcon")                    \
  FAMILY(FalconRw, "RWForCausalLM", "RefinedWebModel")             \
  FAMILY(Gpt2, "GPT2LMHeadModel", "gpt2")                          \
  FAMILY(BigCode, "GPTBigCodeForCausalLM", "gpt_bigcode")          \
  FAMILY(Mpt, "MptForCausalLM", "mpt")                             \
  FAMILY(MptOriginal, "MPTForCausalLM", "mosaic_mpt")

#define ESPALIER_DECLARE(Name, architecture, type) LanguageModel Read##Name(ConfigReader&);
ESPALIER_FAMILIES(ESPALIER_DECLARE)
#undef ESPALIER_DECLARE

namespace {

struct Family {
  const char* architecture;
  const char* model_type;
  LanguageModel (*read)(ConfigReader&);
};
#define ESPALIER_ENTRY(Name, architecture, type) {architecture, type, Read##Name},
constexpr Family kFamilies[] = {ESPALIER_FAMILIES(ESPALIER_ENTRY)};
#undef ESPALIER_ENTRY

const Family* Find(ConfigReader& config) {
  const std::vector<std::string> named = config.Texts("architectures");
  const std::string type = config.Text("model_type", named.empty() ? "llama" : "");
  for (const Family& family : kFamilies) {
    const bool is = named.empty()
                        ? type == family.model_type
                        : std::find(named.begin(), named.end(), family.architecture) != named.end();
    if (is) return &family;
  }
  std::string accepted;
  for (const std::string& name : KnownArchitectures()) {
    absl::StrAppend(&accepted, accepted.empty() ? "" : ", ", name);
  }
  config.Refuse(named.empty() ? "model_type" : "architectures", accepted, /*unsupported=*/true);
  return nullptr;
}

absl::Status CheckShape(const ServingShape& shape) {
  const std::pair<const char*, int> sizes[] = {{"max_rows", shape.max_rows},
                                               {"max_output_rows", shape.max_output_rows},
                                               {"kv_slots", shape.kv_slots},
                                               {"max_sequences", shape.max_sequences},
                                               {"max_context_slots", shape.max_context_slots},
                                               {"max_ancestor_slots", shape.max_ancestor_slots}};
  for (const auto& [name, value] : sizes) {
    if (value >= 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("serving shape: ", name, " is ", value, "; accepted: 1 or more"));
  }
  return absl::OkStatus();
}

// Only Espalier's own packed weights are supported; those of other libraries have other layouts.
int ReadPackedBits(ConfigReader& config) {
  if (!config.Has("quantization_config")) return 0;
  ConfigReader packed = config.Object("quantization_config");
  if (packed.Text("quant_method", "") != kPackedMethod) {
    config.Refuse(
        "quantization_config",
        "null: f32, bf16 or f16 weights, or what `espalier models quantize` makes of them",
        /*unsupported=*/true);
    return 0;
  }
  constexpr int64_t kMost = 1 << 30;
  if (packed.Int("version", 0, 0, kMost) != kPackedVersion) {
    packed.Refuse("version", absl::StrCat(kPackedVersion,
                                          ": weights are packed otherwise now; pack the model "
                                          "again with `espalier models quantize`"));
  }
  if (packed.Int("group_size", 0, 0, kMost) != kPackGroup) {
    packed.Refuse("group_size", absl::StrCat(kPackGroup));
  }
  const int bits = static_cast<int>(packed.Int("bits", 0, 4, 8));
  if (bits != 4 && bits != 8) packed.Refuse("bits", "4 or 8");
  config.Fail(packed.status());
  return bits;
}

// The text part of a multimodal model: its tensors have a prefix.
void FindTextPart(ServingModel* serving) {
  AddImplicitSources(serving->graph, &serving->weights);
  for (auto& [parameter, source] : serving->weights.sources) {
    for (WeightSlice& piece : source.pieces) piece.tensor = absl::StrCat(kTextPart, piece.tensor);
  }
  serving->weights.ignored.insert(serving->weights.ignored.end(),
                                  {"vision_tower.", "multi_modal_projector."});
}

}  // namespace

ConfigReader ReadTextConfig(ConfigReader& config, const std::string& type) {
  if (!config.Has("text_config")) {
    config.Fail(absl::InvalidArgumentError("config.json: field \"text_config\" is missing"));
  }
  ConfigReader text = config.Object("text_config");
  text.RequireText("model_type", {type});
  // Of all the model, which in both libraries means its text part.
  if (!text.Has("tie_word_embeddings") && config.Has("tie_word_embeddings")) {
    text.DefaultFlag("tie_word_embeddings", config.Flag("tie_word_embeddings", true));
  }
  config.Ignore({"tie_word_embeddings"});
  return text;
}

std::vector<std::string> TensorNames(const std::string& name) {
  std::vector<std::string> names = {name, name.substr(name.find('.') + 1)};
  absl::string_view inner = name;
  if (absl::ConsumePrefix(&inner, kTextPart) && absl::ConsumePrefix(&inner, "model.")) {
    names.push_back(absl::StrCat("model.", kTextPart, inner));
  }
  return names;
}

bool IsIgnored(const WeightMap& map, const std::string& tensor) {
  return std::any_of(map.ignored.begin(), map.ignored.end(), [&](const std::string& entry) {
    if (!absl::EndsWith(entry, ".")) return absl::EndsWith(tensor, entry);
    return absl::StartsWith(tensor, entry) || absl::StrContains(tensor, "." + entry);
  });
}

std::vector<std::string> KnownArchitectures() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.push_back(family.architecture);
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<LanguageModel> ReadModel(absl::string_view config_json) {
  absl::StatusOr<ConfigReader> config = ConfigReader::Parse(config_json);
  if (!config.ok()) return config.status();
  const Family* family = Find(*config);
  if (!config->status().ok()) return config->status();
  const int packed_bits = ReadPackedBits(*config);
  LanguageModel model = family->read(*config);
  ModelFacts& facts = model.facts;
  facts.packed_bits = packed_bits;
  facts.family = family->model_type;
  facts.config = std::string(config_json);
  facts.eos = config->TokenIds("eos_token_id");
  if (facts.text_part && !config->Has("eos_token_id")) {
    facts.eos = config->Object("text_config").TokenIds("eos_token_id");
  }
  for (int id : facts.eos) {
    if (id < facts.vocab_size) continue;
    config->Fail(absl::InvalidArgumentError(absl::StrCat(
        "config.json: eos_token_id is ", id, "; accepted: 0 to ", facts.vocab_size - 1)));
  }
  config->RequireText("tokenizer", {"bytes"});
  facts.tokenizer = config->Text("tokenizer", "");
  config->RequireAllRead();
  if (!config->status().ok()) return config->status();
  return model;
}

absl::StatusOr<ServingModel> BuildServing(const OpRegistry& registry, const LanguageModel& model,
                                          const ServingShape& shape) {
  if (absl::Status status = CheckShape(shape); !status.ok()) return status;
  ServingBuilder builder(registry, model, shape);
  const ValueId logits = model.build(builder);
  absl::StatusOr<ServingModel> serving = builder.Finish(logits);
  if (serving.ok() && model.facts.text_part) FindTextPart(&*serving);
  return serving;
}

void AddImplicitSources(const Graph& graph, WeightMap* map) {
  for (const Value& value : graph.values()) {
    if (value.kind != ValueKind::kParameter) continue;
    const Dims& dims = value.type.dims;
    map->sources.try_emplace(
        value.name, WeightSource{{{value.name, dims, false, 0, dims.empty() ? 1 : dims[0]}}});
  }
}

int64_t CountParameters(const Graph& graph) {
  int64_t count = 0;
  for (const Value& value : graph.values()) {
    if (value.kind == ValueKind::kParameter) count += value.type.num_elements();
  }
  return count;
}

}  // namespace espalier
