// What the families' graphs are made of: inputs, parameters with their place in the weights' files,
// and the layers that several families share. Values are [rows, features].
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ops/graph/builder.h"
#include "ops/models/model.h"
#include "ops/models/rope.h"

namespace espalier {

// The weight and bias of a linear layer within a larger one's in the files ("Wqkv").
struct FusedRows {
  std::string tensor;  // "transformer.h.0.attn.c_attn": ".weight" and ".bias" are appended
  int64_t out = 0;     // its rows in all
  std::vector<std::pair<int64_t, int64_t>> rows;  // [begin, end) of them
};

struct LinearOptions {
  bool bias = false;
  bool transposed = false;  // the weight is [in, out] in the files
  FusedRows fused;          // no tensor: the layer has tensors of its own
};

struct AttentionOptions {
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  double scale = 0;                 // 0: 1 / sqrt(head_dim)
  int64_t window = 0;               // 0: all keys
  double softcap = 0;               // 0: none
  std::vector<float> alibi_slopes;  // empty: none
  bool alibi_bf16 = false;          // see paged_attention
};

class ServingBuilder {
 public:
  ServingBuilder(const OpRegistry& registry, const LanguageModel& model, const ServingShape& shape);

  ValueId tokens() const { return tokens_; }
  ValueId positions() const { return positions_; }

  // A parameter, under the tensor's own name unless `source` says what it is made of.
  ValueId Parameter(const std::string& name, Dims dims, WeightSource source = {});

  // Row ids[r] of the table `name`.weight [count, size]; in the files it has `skipped` rows before
  // those.
  ValueId Embedding(const std::string& name, ValueId ids, int64_t count, int64_t size,
                    int64_t skipped = 0);
  // The table of an Embedding, for tied logits. REQUIRES: made before.
  ValueId Table(const std::string& name) const;

  // x weight^T + bias with `name`.weight [out, in] and `name`.bias [out].
  ValueId Linear(const std::string& name, ValueId x, int64_t out, int64_t in,
                 const LinearOptions& options = {});
  // Logits from the rows that want them: by the table of `tied`, if not empty, or "lm_head". The
  // rows themselves become the output "hidden".
  ValueId Logits(ValueId hidden, int64_t size, const std::string& tied);

  // `weight` and `bias` say which parameters the norm has.
  ValueId LayerNorm(const std::string& name, ValueId x, int64_t size, double epsilon,
                    bool weight = true, bool bias = true);
  // The weight is that of the files plus `add`. x is [rows, heads * size]; each head is normalised
  // by itself.
  ValueId RmsNorm(const std::string& name, ValueId x, int64_t size, double epsilon, double add = 0,
                  int64_t heads = 1);

  // Hugging Face's name of an activation: see KnownActivation.
  ValueId Activation(const std::string& hf_name, ValueId x);

  ValueId Rotary(ValueId x, const Rope& rope);
  // Over the paged cache of the layer, which it makes. q, k and v are rotated already.
  ValueId Attention(int layer, ValueId q, ValueId k, ValueId v, const AttentionOptions& options);

  ValueId Op(const std::string& op, const std::vector<ValueId>& inputs, Attributes attributes = {},
             const std::string& name = "");
  ValueId Add(ValueId a, ValueId b) { return Op("add", {a, b}); }
  GraphBuilder& graph() { return b_; }

  // Ends of names of tensors that may be in a file for nothing.
  void Ignore(std::vector<std::string> endings);

  absl::StatusOr<ServingModel> Finish(ValueId logits);

 private:
  const ServingShape& shape_;
  const int64_t vocab_size_;
  const int64_t max_positions_;
  GraphBuilder b_;
  WeightMap weights_;
  std::map<std::string, ValueId> tables_;
  ValueId tokens_, positions_, slots_, row_sequence_, row_prefix_, ancestor_start_, ancestor_slots_,
      sequence_start_, sequence_slots_, logit_rows_;
};

// Reads an activation's name; Unimplemented for one that ServingBuilder::Activation lacks.
std::string ReadActivation(ConfigReader& config, const std::string& field,
                           const std::string& otherwise);

// ALiBi's slopes for any number of heads (Press et al. 2022), as Falcon has them.
std::vector<float> AlibiSlopes(int64_t heads);

}  // namespace espalier
