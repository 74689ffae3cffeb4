// LLaMA as we train it: its configuration and its training graph. Parameters are named as Hugging
// Face's LlamaForCausalLM names them, so that the serving graph, and others, read what training
// wrote.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ops/graph/graph.h"
#include "ops/models/model.h"

namespace espalier {

struct LlamaConfig {
  int64_t vocab_size = 256;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  // divides num_heads
  int64_t head_dim = 0;      // even
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000.0;
  int64_t max_position_embeddings = 2048;
  bool tie_word_embeddings = false;
  std::vector<int> eos;  // empty: the model never ends by itself
  // "bytes" (token i is byte i): what Espalier trains on text. Empty: the folder's tokenizer files.
  std::string tokenizer = "bytes";

  bool operator==(const LlamaConfig&) const = default;
};

// InvalidArgument names the field, what it holds and what would be accepted.
absl::Status Validate(const LlamaConfig& config);

int64_t CountParameters(const LlamaConfig& config);

// config.json as Hugging Face writes it for LlamaForCausalLM, with "tokenizer" besides.
std::string ToConfigJson(const LlamaConfig& config);

// Fields that Hugging Face leaves out get its defaults. InvalidArgument for text that is no JSON
// object or a field that is missing, of the wrong type or out of range; Unimplemented, by name, for
// what changes the mathematics and is not supported: scaled rotary embeddings, biases, other
// activations, quantised weights.
absl::StatusOr<LlamaConfig> LlamaConfigFromJson(absl::string_view text);

// Inputs tokens and targets, i32 [batch, sequence_length]; outputs "loss" (mean cross-entropy) and
// "accuracy". Weights start at normal(0.02); those that write into the residual stream at
// 0.02 / sqrt(2 * layers), as in GPT-2. Metadata: "family" = "llama", "config" = ToConfigJson.
absl::StatusOr<Graph> BuildLlamaTraining(const OpRegistry& registry, const LlamaConfig& config,
                                         int sequence_length);

// BuildServing (model.h) of ToConfigJson: its parameters are named and shaped as the training
// graph's, and as Hugging Face's.
absl::StatusOr<Graph> BuildLlamaServing(const OpRegistry& registry, const LlamaConfig& config,
                                        const ServingShape& shape);

}  // namespace espalier
