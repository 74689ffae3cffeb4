// The configuration of training's LLaMA as config.json, in and out.
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "ops/models/config_reader.h"
#include "ops/models/llama.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

// Any integer: Validate says what is in range.
int64_t AnyInt(ConfigReader& config, const char* field, int64_t otherwise) {
  return config.Int(field, otherwise, -(int64_t{1} << 62), int64_t{1} << 62);
}

int64_t Required(ConfigReader& config, const char* field) {
  if (!config.Has(field)) {
    config.Fail(
        absl::InvalidArgumentError(absl::StrCat("config.json: field \"", field, "\" is missing")));
  }
  return AnyInt(config, field, 0);
}

// Newer files nest {"rope_type", "rope_theta"} in "rope_parameters"; older ones have
// "rope_scaling".
void ReadRotary(ConfigReader& config, LlamaConfig* llama) {
  llama->rope_theta = config.Number("rope_theta", llama->rope_theta);
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    if (!config.Has(field)) continue;
    ConfigReader nested = config.Object(field);
    if (nested.Text(nested.OneOf({"rope_type", "type"}), "") != "default") {
      config.Refuse(field, "null, or rope_type \"default\"", /*unsupported=*/true);
    }
    llama->rope_theta = nested.Number("rope_theta", llama->rope_theta);
  }
}

}  // namespace

std::string ToConfigJson(const LlamaConfig& c) {
  Json json;
  json["architectures"] = {"LlamaForCausalLM"};
  json["model_type"] = "llama";
  json["vocab_size"] = c.vocab_size;
  json["hidden_size"] = c.hidden_size;
  json["intermediate_size"] = c.intermediate_size;
  json["num_hidden_layers"] = c.num_layers;
  json["num_attention_heads"] = c.num_heads;
  json["num_key_value_heads"] = c.num_kv_heads;
  json["head_dim"] = c.head_dim;
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = c.rms_norm_eps;
  json["rope_theta"] = c.rope_theta;
  json["rope_scaling"] = nullptr;
  json["attention_bias"] = false;
  json["mlp_bias"] = false;
  json["max_position_embeddings"] = c.max_position_embeddings;
  json["tie_word_embeddings"] = c.tie_word_embeddings;
  // Null, not absent: Hugging Face would otherwise take its own defaults, which are tokens of ours.
  json["bos_token_id"] = nullptr;
  json["pad_token_id"] = nullptr;
  if (c.eos.empty()) {
    json["eos_token_id"] = nullptr;
  } else if (c.eos.size() == 1) {
    json["eos_token_id"] = c.eos[0];
  } else {
    json["eos_token_id"] = c.eos;
  }
  json["torch_dtype"] = "float32";
  if (!c.tokenizer.empty()) json["tokenizer"] = c.tokenizer;
  return json.dump(2);
}

absl::StatusOr<LlamaConfig> LlamaConfigFromJson(absl::string_view text) {
  absl::StatusOr<ConfigReader> parsed = ConfigReader::Parse(text);
  if (!parsed.ok()) return parsed.status();
  ConfigReader& config = *parsed;
  LlamaConfig llama;
  config.OnlyText("model_type", {"llama"});
  llama.vocab_size = Required(config, "vocab_size");
  llama.hidden_size = Required(config, "hidden_size");
  llama.intermediate_size = Required(config, "intermediate_size");
  llama.num_layers = Required(config, "num_hidden_layers");
  llama.num_heads = Required(config, "num_attention_heads");
  llama.num_kv_heads = AnyInt(config, "num_key_value_heads", llama.num_heads);
  if (llama.num_heads > 0) llama.head_dim = llama.hidden_size / llama.num_heads;
  if (!config.Has("head_dim") && llama.num_heads > 0 && llama.hidden_size % llama.num_heads != 0) {
    config.Refuse("hidden_size", "a multiple of num_attention_heads, or a \"head_dim\" besides");
  }
  llama.head_dim = AnyInt(config, "head_dim", llama.head_dim);
  llama.rms_norm_eps = config.Number("rms_norm_eps", 1e-6);
  ReadRotary(config, &llama);
  llama.max_position_embeddings =
      AnyInt(config, "max_position_embeddings", llama.max_position_embeddings);
  llama.tie_word_embeddings = config.Flag("tie_word_embeddings", false);
  config.OnlyFlag("attention_bias", false, false);
  config.OnlyFlag("mlp_bias", false, false);
  config.OnlyText("hidden_act", {"silu"});
  config.OnlyAbsent("quantization_config", "f32, bf16 or f16 weights");
  config.OnlyText("tokenizer", {"bytes"});
  llama.tokenizer = config.Text("tokenizer", "");
  llama.eos = config.TokenIds("eos_token_id");
  if (!config.status().ok()) return config.status();
  if (absl::Status s = Validate(llama); !s.ok()) return s;
  return llama;
}

}  // namespace espalier
