// Which model a command is about: --model, --graph or --onnx.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/flags.h"
#include "ops/models/llama.h"
#include "espalier/v1/graph.pb.h"

namespace espalier {

std::vector<FlagSpec> ModelFlags();

struct ModelChoice {
  v1::Graph graph;
  std::string onnx_path;    // instead of `graph`
  int sequence_length = 0;  // of a language model built here; 0: unknown
};

// Exactly one of the three must be given.
absl::StatusOr<ModelChoice> ChooseModel(const ParsedFlags& flags);

// --loss and --metrics, or their defaults: what is put on an ONNX model.
struct LossAndMetrics {
  std::string loss;
  std::vector<std::string> metrics;
};
LossAndMetrics ChooseLossAndMetrics(const ParsedFlags& flags);

// "PRESET", "KEY=VALUE,..." or "PRESET,KEY=VALUE,...".
absl::StatusOr<LlamaConfig> ParseLlama(absl::string_view text);

// The config.json that a value of --model stands for: "llama:" and what ParseLlama takes, or the
// name of a file that ends in ".json", of a model of any dense family. A usage error if training
// cannot build it for examples of so many tokens.
absl::StatusOr<std::string> ModelConfig(const std::string& model, int sequence_length);

}  // namespace espalier
