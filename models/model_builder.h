// Builds a family's graph: parameters with their location in the weight files, and the layers that
// families share. The same calls build the serving graph on [rows, features] (ServingBuilder) and
// the training graph on [batch, tokens, features] (TrainingBuilder).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/model.h"
#include "models/rope.h"
#include "ops/graph/builder.h"

namespace espalier {

// A linear layer whose weight and bias are rows of a larger tensor in the files ("Wqkv").
struct FusedRows {
  std::string tensor;  // "transformer.h.0.attn.c_attn": ".weight" and ".bias" are appended
  int64_t out = 0;     // the tensor's rows
  std::vector<std::pair<int64_t, int64_t>> rows;  // [begin, end) of them
};

struct LinearOptions {
  bool bias = false;
  bool transposed = false;  // the weight is [in, out] in the files
  bool residual = false;    // its output is added to the residual stream
  FusedRows fused;          // without `tensor`: the layer has its own tensors
};

struct AttentionOptions {
  int64_t heads = 0;     // of q
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;
  double scale = 0;                 // 0: 1 / sqrt(head_dim)
  int64_t window = 0;               // 0: all keys
  double softcap = 0;               // 0: none
  std::vector<float> alibi_slopes;  // empty: none
  bool alibi_bf16 = false;          // see paged_attention
};

class ModelBuilder {
 public:
  virtual ~ModelBuilder() = default;

  // Adds a parameter, under the tensor's own name unless `source` gives its source.
  virtual ValueId Parameter(const std::string& name, Dims dims, Initializer start,
                            WeightSource source = {}) = 0;

  // Looks up the tokens in the table `name`.weight [count, size].
  ValueId TokenEmbedding(const std::string& name, int64_t count, int64_t size);
  // Looks up the positions; in the files `skipped` rows precede the table's `count` rows.
  virtual ValueId PositionEmbedding(const std::string& name, int64_t count, int64_t size,
                                    int64_t skipped = 0) = 0;

  // x weight^T + bias with `name`.weight [out, in] and `name`.bias [out].
  virtual ValueId Linear(const std::string& name, ValueId x, int64_t out, int64_t in,
                         const LinearOptions& options = {}) = 0;
  // Logits by the table of an earlier TokenEmbedding `tied`, or by "lm_head" if that is empty.
  virtual ValueId Logits(ValueId hidden, int64_t size, const std::string& tied) = 0;

  // `weight` and `bias`: whether the norm has these parameters.
  ValueId LayerNorm(const std::string& name, ValueId x, int64_t size, double epsilon,
                    bool weight = true, bool bias = true);
  // The weight is that of the files plus `add`. x ends in heads * size features; each head is
  // normalized separately.
  ValueId RmsNorm(const std::string& name, ValueId x, int64_t size, double epsilon, double add = 0,
                  int64_t heads = 1);

  // `hf_name`: Hugging Face's name of the activation (ReadActivation).
  ValueId Activation(const std::string& hf_name, ValueId x);

  ValueId Rotary(ValueId x, const Rope& rope);
  // Causal self-attention. q and k are already rotated.
  virtual ValueId Attention(int layer, ValueId q, ValueId k, ValueId v,
                            const AttentionOptions& options) = 0;

  ValueId Op(const std::string& op, const std::vector<ValueId>& inputs, Attributes attributes = {},
             const std::string& name = "");
  ValueId Add(ValueId a, ValueId b) { return Op("add", {a, b}); }
  GraphBuilder& graph() { return b_; }

  // Adds suffixes to WeightMap::ignored.
  void Ignore(std::vector<std::string> endings);

 protected:
  struct Form {
    std::string graph_name;
    size_t leading = 1;            // number of dimensions before the features
    int64_t longest_sequence = 0;  // selects the frequencies of a rope
  };
  ModelBuilder(const OpRegistry& registry, const LanguageModel& model, Form form);

  ValueId Table(const std::string& name) const;
  // The factor of a norm.
  virtual ValueId NormWeight(const std::string& tensor, int64_t size, double add) = 0;
  virtual std::string NodeName(const std::string& op, const std::string& name) { return name; }

  const ModelFacts facts_;
  const Form form_;
  GraphBuilder b_;
  WeightMap weights_;
  ValueId tokens_ = kNoValue;
  ValueId positions_ = kNoValue;  // of the rows; none: row s of a sequence has position s

 private:
  // [leading dimensions, last...]
  ValueId Reshape(ValueId x, const Dims& last);

  std::map<std::string, ValueId> tables_;
};

// Reads the name of an activation; Unimplemented for one that ModelBuilder::Activation lacks.
std::string ReadActivation(ConfigReader& config, const std::string& field,
                           const std::string& otherwise);

// ALiBi's slopes for any number of heads (Press et al. 2022), as Falcon computes them.
std::vector<float> AlibiSlopes(int64_t heads);

}  // namespace espalier
