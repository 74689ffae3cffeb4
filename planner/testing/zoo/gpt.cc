// GPT-3 with an output matrix of its own (the published one is that of the embeddings), so that
// the first and the last stage of a pipeline share nothing. All layers attend to everything before;
// the paper leaves out some of it in every second layer.
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
