// nn.EmbeddingBag as PyTorch's exporter writes it: a loop over the bags, each turn of which looks
// up the rows of one bag and reduces them to one row.
#pragma once

#include "ops/onnx/translator.h"

namespace espalier::onnx_import {

// Translates the current node, a Loop of this form with the body `body` and `bags` turns, to one
// embedding of all bags and a reduction, and returns true. Returns false, without a trace, if the
// loop has another form.
//
// Bags of one length, [bags, length] ids in order, may depend on the batch. Bags between other
// offsets become rows as long as the longest bag; if the offsets are data, as long as all ids
// together. An empty bag is 0, as in PyTorch.
bool TranslateBagLoop(Translator& t, const onnx::GraphProto& body, int64_t bags);

}  // namespace espalier::onnx_import
