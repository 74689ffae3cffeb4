// LLaMA models defined by their sizes, for presets and tests. ReadModel (model.h) reads the
// config.json of any other model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/model.h"
#include "ops/graph/graph.h"

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

// Returns InvalidArgument that names the field, its value and what would be accepted.
absl::Status Validate(const LlamaConfig& config);

int64_t CountParameters(const LlamaConfig& config);

// Returns a config.json for LlamaForCausalLM as Hugging Face writes it, plus "tokenizer"; ReadModel
// (model.h) reads it.
std::string ToConfigJson(const LlamaConfig& config);

// BuildTraining (model.h) of ToConfigJson.
absl::StatusOr<Graph> BuildLlamaTraining(const OpRegistry& registry, const LlamaConfig& config,
                                         int sequence_length);

// BuildServing (model.h) of ToConfigJson. Parameters have the names and shapes of the training
// graph and of Hugging Face.
absl::StatusOr<Graph> BuildLlamaServing(const OpRegistry& registry, const LlamaConfig& config,
                                        const ServingShape& shape);

}  // namespace espalier
