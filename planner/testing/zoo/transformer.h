// Layers that the zoo's transformers share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "planner/testing/zoo/layers.h"
#include "planner/testing/zoo/models.h"

namespace espalier::zoo {

// "<prefix>.query", ".key", ".value", ".core" and ".output".
Features SelfAttention(Layers& l, const std::string& prefix, Features x, int64_t heads,
                       bool causal);

// Two linear layers with GELU between them: "<prefix>.up" and ".down".
Features FeedForward(Layers& l, const std::string& prefix, Features x, int64_t inner);

// A GPT-2 decoder with pre-norm layers: returns the logits of the graph's input "tokens".
// `feed_forward` makes the second half of layer `i`, with `prefix` before its operators' names.
using MakeFeedForward = std::function<Features(int i, const std::string& prefix, Features x)>;
Features Decode(Layers& l, const GptSizes& sizes, const MakeFeedForward& feed_forward);

}  // namespace espalier::zoo
