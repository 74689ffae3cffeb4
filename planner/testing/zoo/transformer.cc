#include "planner/testing/zoo/transformer.h"

#include "absl/strings/str_cat.h"

namespace espalier::zoo {

Features SelfAttention(Layers& l, const std::string& prefix, Features x, int64_t heads,
                       bool causal) {
  const Features q = l.Linear(prefix + ".query", x, x.width);
  const Features k = l.Linear(prefix + ".key", x, x.width);
  const Features v = l.Linear(prefix + ".value", x, x.width);
  const Features y = {
      l.builder().Op("attention", {q.value, k.value, v.value},
                     {{"head_dim", x.width / heads}, {"causal", causal}}, prefix + ".core"),
      x.width};
  return l.Linear(prefix + ".output", y, x.width, Bias::kApart);
}

Features FeedForward(Layers& l, const std::string& prefix, Features x, int64_t inner) {
  const Features up = l.Linear(prefix + ".up", x, inner, Bias::kFused, "gelu");
  return l.Linear(prefix + ".down", up, x.width, Bias::kApart);
}

Features Decode(Layers& l, const GptSizes& sizes, const MakeFeedForward& feed_forward) {
  GraphBuilder& b = l.builder();
  const ValueId tokens = b.Input("tokens", DType::kI64, {-1, sizes.sequence});
  const ValueId words = l.Weight("embeddings.words.weight", {sizes.vocabulary, sizes.hidden});
  const ValueId positions = l.Weight("embeddings.positions.weight", {sizes.sequence, sizes.hidden});
  const ValueId rows = b.Op("embedding", {tokens, words}, {}, "embeddings.words");
  Features sum = {b.Op("add", {rows, positions}, {}, "embeddings.positions"), sizes.hidden};
  Features x = l.LayerNorm("layers.0.attention.norm", sum);
  // A residual sum and the norm of the next layer are one operator.
  const auto next = [&](const std::string& norm, Features result) {
    const Layers::Normed both = l.ResidualLayerNorm(norm, sum, result);
    x = both.normed;
    sum = both.sum;
  };
  for (int i = 0; i < sizes.layers; ++i) {
    const std::string layer = absl::StrCat("layers.", i);
    next(layer + ".ffn.norm", SelfAttention(l, layer + ".attention", x, sizes.heads, true));
    next(i + 1 < sizes.layers ? absl::StrCat("layers.", i + 1, ".attention.norm") : "final_norm",
         feed_forward(i, layer + ".ffn", x));
  }
  return l.Linear("head", x, sizes.vocabulary, Bias::kNone);
}

}  // namespace espalier::zoo
