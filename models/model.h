// A language model as it is served: what its config.json says, the graph that runs it, and where
// each of the graph's parameters lies in the weights' files. Families (LLaMA, OPT, Falcon, ...)
// each have a file of their own that makes one of a config.json; families.cc lists them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ops/graph/graph.h"

namespace espalier {

// Largest sizes of one step; see serving/runner/model_runner.h, whose RunnerLimits they become.
struct ServingShape {
  int max_rows = 0;
  int max_output_rows = 0;
  int kv_slots = 0;
  int max_sequences = 0;
  int max_context_slots = 0;
  int max_ancestor_slots = 0;
  // Longest sequence that will be served; 0: the model's. Rotary embeddings that differ for short
  // and long contexts (longrope) are chosen by it, once, so that a row's result never depends on
  // how long the sequence gets.
  int max_positions = 0;
  DType kv_cache_dtype = DType::kF32;  // of keys and values in the cache: f32, f16, bf16 or i8
};

// Rows of a tensor in the weights' files.
struct WeightSlice {
  std::string tensor;  // its name there
  Dims dims;           // its shape there
  // Rank 2 only: the tensor is [in, out] there (GPT-2's Conv1D); rows below are those of the
  // transposed one.
  bool transposed = false;
  int64_t begin = 0, end = 0;  // rows, of dimension 0

  bool operator==(const WeightSlice&) const = default;
};

// What a parameter is made of: the pieces one after another, each element plus `add`.
struct WeightSource {
  std::vector<WeightSlice> pieces;
  double add = 0;
  // 8 or 4: the pieces are a matrix [out, in] that the parameter holds packed
  // (ops/kernel/packed_weights.h); if it has three dimensions, as many such matrices as the first
  // says, each packed by itself. 0: as it is.
  int bits = 0;
  int64_t out = 0, in = 0;
  bool packed = false;  // then the one piece is that matrix as the parameter holds it, all of it

  bool operator==(const WeightSource&) const = default;
};

// Parameters that are not named here lie under their own name, in their own shape.
struct WeightMap {
  // One without pieces is filled by someone else (adapters.h).
  std::map<std::string, WeightSource> sources;
  // Tensors that a file may hold and nobody reads, by the ends of their names:
  // ".rotary_emb.inv_freq"; what ends in a dot is a part of the model, with all that is in it:
  // "vision_tower.". Any other tensor that no parameter is made of is an error.
  std::vector<std::string> ignored;
};
bool IsIgnored(const WeightMap& map, const std::string& tensor);

// What the names of the text part's tensors begin with in a model that reads images, too.
inline constexpr char kTextPart[] = "language_model.";

// The names under which files may have a tensor that is called `name` here, of which the first one
// counts that is there: its own; without its first part ("transformer."), which bare models lack;
// and for the text part of a model that reads images, "language_model.model.x", what transformers 5
// makes of it, "model.language_model.x".
std::vector<std::string> TensorNames(const std::string& name);

struct ModelFacts {
  std::string family;  // "llama"
  int64_t vocab_size = 0;
  int64_t max_positions = 0;  // max_position_embeddings, or more by rope_scaling (rope.h)
  int64_t layers = 0;
  bool experts = false;  // some layers are mixtures of them
  // The text part of a model that reads images, too; they are not read here. Its tensors lie under
  // kTextPart.
  bool text_part = false;
  std::vector<int> eos;   // empty: the model never ends by itself
  std::string tokenizer;  // "bytes": token i is byte i. Empty: the folder's tokenizer files
  std::string config;     // the text of config.json
  // 8 or 4: the weights are packed, as quantize.h says. 0: they are the family's own.
  int packed_bits = 0;
  // longrope and dynamic: a model that is served for longer sequences than this turns all of them
  // by the frequencies for long ones. 0: there is no such choice.
  int64_t short_positions = 0;
  bool dynamic_rope = false;  // it is dynamic
  // For how many it is served where nobody asks for another number: all, but with dynamic those for
  // which logits are those of transformers.
  int64_t default_positions() const { return dynamic_rope ? short_positions : max_positions; }
};

class ModelBuilder;

struct LanguageModel {
  ModelFacts facts;
  // Adds everything from the tokens to the logits, which it returns; for serving and training
  // alike.
  std::function<ValueId(ModelBuilder&)> build;
};

// By "architectures", or "model_type" where that is missing. InvalidArgument for text that is no
// JSON object or a field that is missing, of the wrong type or out of range; Unimplemented, by
// name, for families that are not known and for switches that change the mathematics and are not
// supported. Where Hugging Face's configuration class has a default it is taken.
absl::StatusOr<LanguageModel> ReadModel(absl::string_view config_json);

// The architectures that ReadModel takes, sorted.
std::vector<std::string> KnownArchitectures();

struct ServingModel {
  Graph graph;
  WeightMap weights;
};

// Inputs, all i32, as the fields of RunnerBatch: tokens, positions, slots, row_sequence, row_prefix
// [max_rows]; ancestor_start [max_rows + 1]; ancestor_slots; sequence_start [max_sequences + 1];
// sequence_slots; logit_rows [max_output_rows]. States "layers.N.k_cache" and "layers.N.v_cache"
// [kv_slots, kv_heads * head_dim] in the shape's kv_cache_dtype and, where that is i8,
// "layers.N.k_scale" and "layers.N.v_scale", f32 [kv_slots, kv_heads]. Outputs "logits", f32
// [max_output_rows, vocab_size], and "hidden", f32 [max_output_rows, hidden size]: what the logits
// are made of, the last layer's states as the final norm leaves them. Metadata: "family", "config",
// and "dynamic.<input>" = "rows" or "output_rows" for inputs whose length follows the batch.
absl::StatusOr<ServingModel> BuildServing(const OpRegistry& registry, const LanguageModel& model,
                                          const ServingShape& shape);

struct TrainingModel {
  Graph graph;
  // Ends of names of tensors that a file may hold beside the graph's parameters: see WeightMap.
  std::vector<std::string> ignored;
};

// Inputs tokens and targets, i32 [batch, sequence_length]; outputs "loss" (mean cross entropy over
// all targets, of which those of -100 add nothing) and "accuracy". Parameters are named and shaped
// as the tensors of the family's files: what training writes is such a file. They start as in
// GPT-2: normal(0.02), what writes into the residual stream at 0.02 / sqrt(2 * layers), norms as
// the identity, biases as 0. There is no dropout. Metadata: "family", "config". InvalidArgument for
// sequences longer than the model's positions; Unimplemented, by name, for mixtures of experts,
// packed weights and text parts of models that read images.
absl::StatusOr<TrainingModel> BuildTraining(const OpRegistry& registry, const LanguageModel& model,
                                            int64_t sequence_length);

// Adds what the map leaves to be understood: parameters under their own name. One rank of a model
// that is cut over several has only some of them, but tells by this what the others read.
void NameEverySource(const Graph& graph, WeightMap* map);

// Elements of all parameters of a graph.
int64_t CountParameters(const Graph& graph);

}  // namespace espalier
