// Writes the sizes of a LLaMA as config.json.
#include <nlohmann/json.hpp>
#include <string>

#include "models/llama.h"

namespace espalier {

std::string ToConfigJson(const LlamaConfig& c) {
  nlohmann::ordered_json json;
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
  // Null rather than absent: Hugging Face's defaults are ordinary tokens here.
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

}  // namespace espalier
