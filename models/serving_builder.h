// Builds serving graphs (BuildServing). Values are [rows, features].
#pragma once

#include <string>
#include <vector>

#include "models/model_builder.h"

namespace espalier {

class ServingBuilder : public ModelBuilder {
 public:
  ServingBuilder(const OpRegistry& registry, const LanguageModel& model, const ServingShape& shape);

  ValueId Parameter(const std::string& name, Dims dims, Initializer start,
                    WeightSource source = {}) override;
  ValueId PositionEmbedding(const std::string& name, int64_t count, int64_t size,
                            int64_t skipped = 0) override;
  ValueId Linear(const std::string& name, ValueId x, int64_t out, int64_t in,
                 const LinearOptions& options = {}) override;
  // Computes logits for the rows in logit_rows. These rows' hidden states become the output
  // "hidden".
  ValueId Logits(ValueId hidden, int64_t size, const std::string& tied) override;
  // Creates the layer's paged KV cache and attends over it.
  ValueId Attention(int layer, ValueId q, ValueId k, ValueId v,
                    const AttentionOptions& options) override;

  absl::StatusOr<ServingModel> Finish(ValueId logits);

 private:
  ValueId NormWeight(const std::string& tensor, int64_t size, double add) override;

  const ServingShape& shape_;
  ValueId slots_, row_sequence_, row_prefix_, ancestor_start_, ancestor_slots_, sequence_start_,
      sequence_slots_, logit_rows_;
};

}  // namespace espalier
