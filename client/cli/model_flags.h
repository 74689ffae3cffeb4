// Flags that choose a command's model: --model, --graph or --onnx.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/flags.h"
#include "espalier/v1/graph.pb.h"
#include "models/llama.h"

namespace espalier {

std::vector<FlagSpec> ModelFlags();

struct ModelChoice {
  v1::Graph graph;
  std::string onnx_path;    // if set, used instead of `graph`; for OnnxArtifact (onnx_files.h)
  int sequence_length = 0;  // of a language model built locally; 0: unknown
};

// Returns a usage error unless exactly one of the three is given. `byte_tokenizer` as for
// ModelConfig.
absl::StatusOr<ModelChoice> ChooseModel(const ParsedFlags& flags, bool byte_tokenizer = true);

// The graph in a file, as --graph names it. Usage errors name the file.
absl::StatusOr<v1::Graph> ReadGraph(const std::string& path);

// Parses "PRESET", "KEY=VALUE,..." or "PRESET,KEY=VALUE,...".
absl::StatusOr<LlamaConfig> ParseLlama(absl::string_view text);

// Returns the config.json for a value of --model: "llama:" plus the syntax of ParseLlama, or the
// name of a ".json" file of a model of any dense family. A "llama:" model has the tokenizer of
// bytes if `byte_tokenizer`; a file has what it says. Returns a usage error if training cannot
// build the model for `sequence_length` tokens.
absl::StatusOr<std::string> ModelConfig(const std::string& model, int sequence_length,
                                        bool byte_tokenizer = true);

}  // namespace espalier
