// Exports operators that move elements.
#include <algorithm>
#include <limits>

#include "ops/onnx/writer.h"

namespace espalier::onnx_export {
namespace {

using Int64s = std::vector<int64_t>;

void WithInts(Writer& w, const std::string& op_type, const std::string& attribute) {
  w.Finish(op_type, {w.In(0), w.Ints(w.attributes().Ints(attribute))});
}

void Concat(Writer& w) {
  std::vector<std::string> inputs;
  for (int i = 0; i < w.NumIn(); ++i) inputs.push_back(w.In(i));
  w.Finish("Concat", inputs, {{"axis", w.attributes().Int("axis")}});
}

void Split(Writer& w) {
  w.Finish("Split", {w.In(0), w.Ints(w.attributes().Ints("sizes"))},
           {{"axis", w.attributes().Int("axis")}});
}

void Slice(Writer& w) {
  const Int64s axes = w.attributes().Ints("axes");
  Int64s steps = w.attributes().Ints("steps");
  if (steps.empty()) steps.assign(axes.size(), 1);
  w.Finish("Slice", {w.In(0), w.Ints(w.attributes().Ints("starts")),
                     w.Ints(w.attributes().Ints("ends")), w.Ints(axes), w.Ints(steps)});
}

void Reverse(Writer& w) {
  const Int64s axes = w.attributes().Ints("axes");
  const Int64s last(axes.size(), -1);
  const Int64s before(axes.size(), std::numeric_limits<int64_t>::min() + 1);
  w.Finish("Slice", {w.In(0), w.Ints(last), w.Ints(before), w.Ints(axes), w.Ints(last)});
}

void Gather(Writer& w) {
  w.Finish("Gather", {w.In(0), w.In(1)}, {{"axis", w.attributes().Int("axis")}});
}

void Embedding(Writer& w) { w.Finish("Gather", {w.In(1), w.In(0)}, {{"axis", int64_t{0}}}); }

void Pad(Writer& w) {
  w.Finish("Pad",
           {w.In(0), w.Ints(w.attributes().Ints("pads")),
            w.Number(w.attributes().Float("value"), w.InType(0).dtype)},
           {{"mode", w.attributes().String("mode", "constant")}});
}

}  // namespace

void RegisterShapeWriters(WriterTable& table) {
  const auto ints = [&](const std::string& op, const std::string& onnx, const std::string& name) {
    table[op] = [onnx, name](Writer& w) { WithInts(w, onnx, name); };
  };
  ints("expand", "Expand", "shape");
  ints("reshape", "Reshape", "shape");
  ints("squeeze", "Squeeze", "axes");
  ints("tile", "Tile", "repeats");
  ints("unsqueeze", "Unsqueeze", "axes");
  table["concat"] = Concat;
  table["embedding"] = Embedding;
  table["flatten"] = [](Writer& w) {
    w.Finish("Flatten", {w.In(0)}, {{"axis", w.attributes().Int("axis")}});
  };
  table["gather"] = Gather;
  table["pad"] = Pad;
  table["reverse"] = Reverse;
  table["slice"] = Slice;
  table["split"] = Split;
  table["transpose"] = [](Writer& w) {
    w.Finish("Transpose", {w.In(0)}, {{"perm", w.attributes().Ints("perm")}});
  };
}

}  // namespace espalier::onnx_export
