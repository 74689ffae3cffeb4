#include "models/llama.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

absl::Status Refuse(const std::string& field, const std::string& found,
                    const std::string& accepted) {
  return absl::InvalidArgumentError(
      absl::StrCat("LLaMA configuration: ", field, " is ", found, "; accepted: ", accepted));
}

}  // namespace

absl::Status Validate(const LlamaConfig& c) {
  // Far above any model, and low enough that no product of two overflows.
  constexpr int64_t kMax = int64_t{1} << 30;
  const std::pair<const char*, int64_t> sizes[] = {
      {"vocab_size", c.vocab_size},
      {"hidden_size", c.hidden_size},
      {"intermediate_size", c.intermediate_size},
      {"num_hidden_layers", c.num_layers},
      {"num_attention_heads", c.num_heads},
      {"num_key_value_heads", c.num_kv_heads},
      {"head_dim", c.head_dim},
      {"max_position_embeddings", c.max_position_embeddings}};
  for (const auto& [name, value] : sizes) {
    if (value < 1 || value > kMax) return Refuse(name, absl::StrCat(value), "1 to 2^30");
  }
  if (c.num_layers > 4096)
    return Refuse("num_hidden_layers", absl::StrCat(c.num_layers), "1 to 4096");
  if (c.num_heads % c.num_kv_heads != 0) {
    return Refuse("num_key_value_heads", absl::StrCat(c.num_kv_heads),
                  absl::StrCat("a divisor of num_attention_heads (", c.num_heads, ")"));
  }
  if (c.head_dim % 2 != 0) {
    return Refuse("head_dim", absl::StrCat(c.head_dim), "an even number (rotary embedding)");
  }
  if (c.num_heads * c.head_dim > kMax) {
    return Refuse("head_dim", absl::StrCat(c.head_dim),
                  "num_attention_heads * head_dim of at most 2^30");
  }
  if (!(c.rms_norm_eps > 0 && c.rms_norm_eps < 1)) {
    return Refuse("rms_norm_eps", absl::StrCat(c.rms_norm_eps), "above 0 and below 1");
  }
  if (!(c.rope_theta >= 1 && c.rope_theta <= 1e15)) {
    return Refuse("rope_theta", absl::StrCat(c.rope_theta), "1 to 1e15");
  }
  for (int id : c.eos) {
    if (id < 0 || id >= c.vocab_size) {
      return Refuse("eos_token_id", absl::StrCat(id), absl::StrCat("0 to ", c.vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

int64_t CountParameters(const LlamaConfig& c) {
  const int64_t q = c.num_heads * c.head_dim;
  const int64_t kv = c.num_kv_heads * c.head_dim;
  const int64_t layer = c.hidden_size * (2 * q + 2 * kv + 3 * c.intermediate_size + 2);
  const int64_t table = c.vocab_size * c.hidden_size;
  return c.num_layers * layer + c.hidden_size + (c.tie_word_embeddings ? table : 2 * table);
}

absl::StatusOr<Graph> BuildLlamaTraining(const OpRegistry& registry, const LlamaConfig& config,
                                         int sequence_length) {
  if (absl::Status s = Validate(config); !s.ok()) return s;
  if (sequence_length < 1 || sequence_length > config.max_position_embeddings) {
    return Refuse(
        "sequence length", absl::StrCat(sequence_length),
        absl::StrCat("1 to max_position_embeddings (", config.max_position_embeddings, ")"));
  }
  const absl::StatusOr<LanguageModel> model = ReadModel(ToConfigJson(config));
  if (!model.ok()) return model.status();
  absl::StatusOr<TrainingModel> training = BuildTraining(registry, *model, sequence_length);
  if (!training.ok()) return training.status();
  return std::move(training->graph);
}

absl::StatusOr<Graph> BuildLlamaServing(const OpRegistry& registry, const LlamaConfig& config,
                                        const ServingShape& shape) {
  if (absl::Status s = Validate(config); !s.ok()) return s;
  const absl::StatusOr<LanguageModel> model = ReadModel(ToConfigJson(config));
  if (!model.ok()) return model.status();
  absl::StatusOr<ServingModel> serving = BuildServing(registry, *model, shape);
  if (!serving.ok()) return serving.status();
  return std::move(serving->graph);
}

}  // namespace espalier
