// BERT-large with its masked-language-model head, tied to the embeddings; without the pooler, the
// next-sentence head (1 M parameters) and dropout.
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "planner/testing/zoo/layers.h"
#include "planner/testing/zoo/models.h"
#include "planner/testing/zoo/transformer.h"

namespace espalier::zoo {

absl::StatusOr<Graph> BuildBertLarge(const OpRegistry& registry) {
  constexpr int kLayers = 24;
  constexpr int64_t kHidden = 1024, kHeads = 16, kSequence = 512, kVocabulary = 30522;
  Layers l(registry, "bert_large");
  GraphBuilder& b = l.builder();
  const ValueId words = l.Weight("embeddings.words.weight", {kVocabulary, kHidden});
  const ValueId positions = l.Weight("embeddings.positions.weight", {kSequence, kHidden});
  const ValueId segments = l.Weight("embeddings.segments.weight", {2, kHidden});
  const auto look_up = [&](const char* input, const char* name, ValueId table) {
    return b.Op("embedding", {b.Input(input, DType::kI64, {-1, kSequence}), table}, {}, name);
  };
  Features x = {b.Op("add",
                     {look_up("tokens", "embeddings.words", words),
                      look_up("token_types", "embeddings.segments", segments)},
                     {}, "embeddings.sum"),
                kHidden};
  x.value = b.Op("add", {x.value, positions}, {}, "embeddings.positions");
  x = l.LayerNorm("embeddings.norm", x);
  for (int i = 0; i < kLayers; ++i) {
    const std::string layer = absl::StrCat("layers.", i);
    const Features attended = SelfAttention(l, layer + ".attention", x, kHeads, /*causal=*/false);
    x = l.ResidualLayerNorm(layer + ".attention.norm", x, attended).normed;
    const Features fed = FeedForward(l, layer + ".ffn", x, 4 * kHidden);
    x = l.ResidualLayerNorm(layer + ".ffn.norm", x, fed).normed;
  }
  x = l.LayerNorm("head.norm", l.Linear("head.transform", x, kHidden, Bias::kFused, "gelu"));
  const ValueId bias = b.Parameter("head.bias", DType::kF32, {kVocabulary}, {});
  return l.Classify({b.Op("linear", {x.value, words, bias}, {}, "head"), kVocabulary},
                    {-1, kSequence});
}

}  // namespace espalier::zoo
