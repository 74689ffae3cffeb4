// A language model: its config.json, a builder of its graph, and the location of each parameter in
// the weight files. Each family (LLaMA, OPT, Falcon, ...) has its own file that reads a
// config.json; families.cc lists them.
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

// Limits of one step; they become the RunnerLimits of serving/runner/model_runner.h.
struct ServingShape {
  int max_rows = 0;
  int max_output_rows = 0;
  int kv_slots = 0;
  int max_sequences = 0;
  int max_context_slots = 0;
  int max_ancestor_slots = 0;
  // The longest sequence to be served; 0: the model's maximum. Selects between the short and long
  // frequencies of longrope once, so that a row's result never depends on the length that its
  // sequence reaches.
  int max_positions = 0;
  DType kv_cache_dtype = DType::kF32;  // of keys and values in the KV cache: f32, f16, bf16 or i8
};

// A range of rows of a tensor in the weight files.
struct WeightSlice {
  std::string tensor;  // its name in the files
  Dims dims;           // its shape in the files
  // Rank 2 only: the file holds [in, out] (GPT-2's Conv1D); the rows below are of the transpose.
  bool transposed = false;
  int64_t begin = 0, end = 0;  // rows, of dimension 0

  bool operator==(const WeightSlice&) const = default;
};

// The source of a parameter: the pieces concatenated, with `add` added to each element.
struct WeightSource {
  std::vector<WeightSlice> pieces;
  double add = 0;
  // 8 or 4: the pieces form a matrix [out, in], which the parameter holds packed
  // (ops/kernel/packed_weights.h); if it has three dimensions, one such matrix per element of the
  // first. 0: not packed.
  int bits = 0;
  int64_t out = 0, in = 0;
  bool packed = false;  // the single piece is already packed and is copied whole

  bool operator==(const WeightSource&) const = default;
};

// Parameters that are not listed have their own name and shape in the files.
struct WeightMap {
  // A source without pieces is filled by other code (lora.h).
  std::map<std::string, WeightSource> sources;
  // Suffixes of tensors that a file may hold and nobody reads: ".rotary_emb.inv_freq". A suffix
  // that ends in a dot names a component with all its tensors: "vision_tower.". Any other unused
  // tensor is an error.
  std::vector<std::string> ignored;
};
bool IsIgnored(const WeightMap& map, const std::string& tensor);

// Prefix of the text part's tensors in a multimodal model.
inline constexpr char kTextPart[] = "language_model.";

// Returns the names that a file may use for tensor `name`, in order of preference: the name itself;
// without its first component ("transformer."), as bare models have it; and for the text part of a
// multimodal model "language_model.model.x", the name of transformers 5, "model.language_model.x".
std::vector<std::string> TensorNames(const std::string& name);

struct ModelFacts {
  std::string family;  // "llama"
  int64_t vocab_size = 0;
  int64_t max_positions = 0;  // max_position_embeddings, or more by rope_scaling (rope.h)
  int64_t layers = 0;
  bool experts = false;  // some layers are mixtures of experts
  // This is the text part of a multimodal model, whose other parts are not read. Its tensors have
  // the prefix kTextPart.
  bool text_part = false;
  std::vector<int> eos;   // empty: the model never ends by itself
  std::string tokenizer;  // "bytes": token i is byte i. Empty: the folder's tokenizer files
  std::string config;     // the text of config.json
  // 8 or 4: the files hold packed weights (quantize.h). 0: they do not.
  int packed_bits = 0;
  // For longrope and dynamic RoPE scaling: if the model is served for longer sequences than this,
  // all sequences use the long frequencies. 0: the frequencies do not depend on length.
  int64_t short_positions = 0;
  bool dynamic_rope = false;  // dynamic RoPE scaling
  // The default of the longest sequence to be served: all positions; with dynamic scaling those up
  // to which the logits equal those of Hugging Face's transformers.
  int64_t default_positions() const { return dynamic_rope ? short_positions : max_positions; }
};

class ModelBuilder;

struct LanguageModel {
  ModelFacts facts;
  // Adds the layers from tokens to logits and returns the logits. Used for serving and training.
  std::function<ValueId(ModelBuilder&)> build;
};

// Selects the family by "architectures", or by "model_type" if that is absent. Missing fields take
// the default of Hugging Face's configuration class. Returns InvalidArgument if the text is not a
// JSON object or a field is missing, of the wrong type or out of range; Unimplemented, by name, for
// unknown families and for unsupported switches that change the mathematics.
absl::StatusOr<LanguageModel> ReadModel(absl::string_view config_json);

// The architectures that ReadModel supports, sorted.
std::vector<std::string> KnownArchitectures();

struct ServingModel {
  Graph graph;
  WeightMap weights;
};

// Builds the serving graph. Inputs, all i32, match the fields of RunnerBatch: tokens, positions,
// slots, row_sequence, row_prefix [max_rows]; ancestor_start [max_rows + 1]; ancestor_slots;
// sequence_start [max_sequences + 1]; sequence_slots; logit_rows [max_output_rows]. States are
// "layers.N.k_cache" and "layers.N.v_cache" [kv_slots, kv_heads * head_dim] in the shape's
// kv_cache_dtype and, if that is i8, "layers.N.k_scale" and "layers.N.v_scale", f32 [kv_slots,
// kv_heads]. Outputs are "logits", f32 [max_output_rows, vocab_size], and "hidden", f32
// [max_output_rows, hidden size], the hidden states after the final norm. Metadata: "family",
// "config", and "dynamic.<input>" = "rows" or "output_rows" for inputs whose length follows the
// batch.
absl::StatusOr<ServingModel> BuildServing(const OpRegistry& registry, const LanguageModel& model,
                                          const ServingShape& shape);

struct TrainingModel {
  Graph graph;
  // As WeightMap::ignored.
  std::vector<std::string> ignored;
};

// Builds the training graph. Inputs are tokens and targets, i32 [batch, sequence_length]; outputs
// are "loss" (mean cross entropy over all targets; those of -100 add 0) and "accuracy". Parameters
// have the names and shapes of the family's files, so trained weights are such a file. They are
// initialized as in GPT-2: normal(0.02), projections into the residual stream 0.02 / sqrt(2 *
// layers), norms as the identity, biases 0. There is no dropout. Metadata: "family", "config".
// Returns InvalidArgument for sequences longer than the model's positions; Unimplemented, by name,
// for mixtures of experts, packed weights and text parts of multimodal models.
absl::StatusOr<TrainingModel> BuildTraining(const OpRegistry& registry, const LanguageModel& model,
                                            int64_t sequence_length);

// Adds the implicit sources: parameters under their own name. A tensor-parallel rank has only some
// parameters; the complete map tells it which tensors the other ranks read.
void AddImplicitSources(const Graph& graph, WeightMap* map);

// The number of elements of all parameters of a graph.
int64_t CountParameters(const Graph& graph);

}  // namespace espalier
