// GPT-3 with an untied output matrix (the published one is tied to the embeddings), so that the
// first and last pipeline stage share nothing. All layers use full causal attention; in the paper
// every second layer is sparse.
#include "planner/testing/zoo/layers.h"
#include "planner/testing/zoo/models.h"
#include "planner/testing/zoo/transformer.h"

namespace espalier::zoo {

absl::StatusOr<Graph> BuildGpt(const OpRegistry& registry, const std::string& name,
                               const GptSizes& sizes) {
  Layers l(registry, name);
  const Features logits = Decode(l, sizes, [&](int, const std::string& prefix, Features x) {
    return FeedForward(l, prefix, x, 4 * sizes.hidden);
  });
  return l.Classify(logits, {-1, sizes.sequence});
}

}  // namespace espalier::zoo
