// Builds training graphs (BuildTraining). Values are [batch, tokens, features]. Every parameter is
// a tensor of the family's files, unchanged: where the files fuse layers, shift a norm's weight or
// transpose a matrix, the graph computes with that, and its gradient follows.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/model_builder.h"

namespace espalier {

class TrainingBuilder : public ModelBuilder {
 public:
  // REQUIRES: 1 <= sequence_length <= the model's positions.
  TrainingBuilder(const OpRegistry& registry, const LanguageModel& model, int64_t sequence_length,
                  int64_t soft_labels);

  // Unimplemented if the parameter is not a whole tensor of the files.
  ValueId Parameter(const std::string& name, Dims dims, Initializer start,
                    WeightSource source = {}) override;
  ValueId PositionEmbedding(const std::string& name, int64_t count, int64_t size,
                            int64_t skipped = 0) override;
  ValueId Linear(const std::string& name, ValueId x, int64_t out, int64_t in,
                 const LinearOptions& options = {}) override;
  ValueId Logits(ValueId hidden, int64_t size, const std::string& tied) override;
  // Uses the operator `attention` if it can; otherwise (ALiBi, soft-capped scores) basic operators.
  ValueId Attention(int layer, ValueId q, ValueId k, ValueId v,
                    const AttentionOptions& options) override;

  // Adds the loss of the logits. Leaves the builder empty.
  absl::StatusOr<TrainingModel> Finish(ValueId logits);

 private:
  ValueId NormWeight(const std::string& tensor, int64_t size, double add) override;
  // Strips "model."; a name without it gets one that includes the layer, equal in all layers.
  std::string NodeName(const std::string& op, const std::string& name) override;

  ValueId Loss(ValueId logits);
  // A linear layer with the tensor as the files hold it.
  ValueId WholeLinear(const std::string& name, ValueId x, int64_t out, int64_t in,
                      const LinearOptions& options);
  ValueId Columns(ValueId x, const FusedRows& fused, const std::string& name);

  ValueId Floats(const std::string& name, Dims dims, const std::vector<float>& values);
  // i32 [tokens, tokens]: position of the row's token minus that of the column's.
  ValueId RelativePositions();
  // bool [tokens, tokens]: what a row attends to; `causal`: only itself and earlier tokens.
  ValueId VisibilityMask(int64_t window, bool causal);
  // f32 [kv heads, heads per kv head, 1 or tokens, tokens]: bias added to scaled scores.
  ValueId Alibi(const AttentionOptions& options, double scale);
  ValueId DecomposedAttention(ValueId q, ValueId k, ValueId v, const AttentionOptions& options);
  ValueId Heads(ValueId x, const AttentionOptions& options, int64_t group);

  const int64_t length_;
  absl::Status status_;
  const int64_t soft_labels_;
  ValueId targets_ = kNoValue;
  std::map<std::string, ValueId> fused_;              // outputs of fused layers by tensor
  std::map<std::pair<int64_t, bool>, ValueId> seen_;  // by window and `causal`
  ValueId distance_ = kNoValue, alibi_ = kNoValue, unseen_ = kNoValue;  // shared by all layers
  std::string scope_;                                                   // "layers.3."
  std::map<std::string, int> unnamed_;                                  // by scope and operator
};

}  // namespace espalier
