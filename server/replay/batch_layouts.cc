#include "server/replay/batch_layouts.h"

#include "server/replay/find_value.h"

namespace espalier {

BatchLayouts::BatchLayouts(const OpRegistry& registry, const Graph& graph, int64_t size)
    : graph_(graph), doubled_(graph), size_(size) {
  for (size_t v = 0; v < graph.values().size(); ++v) {
    Value& value = doubled_.mutable_value(static_cast<ValueId>(v));
    if (value.kind != ValueKind::kInput || value.type.dims.empty()) continue;
    if (value.type.dims[0] == size) value.type.dims[0] = 2 * size;
  }
  known_ = BindAndInfer(registry, 2 * size, &doubled_).ok();
}

std::optional<Dims> BatchLayouts::Twice(const ProbeTarget& target, const Dims& dims) const {
  if (dims.empty() || target.kind == ProbeTarget::kParam) return dims;
  if (target.kind == ProbeTarget::kBatch) {
    if (dims[0] % size_ != 0) return std::nullopt;
    Dims twice = dims;
    twice[0] *= 2;
    return twice;
  }
  const ValueId value = FindProbed(graph_, target.name);
  if (!known_ || value == kNoValue) return std::nullopt;
  return doubled_.value(value).type.dims;
}

BatchLayout BatchLayouts::Of(const ProbeTarget& target, const Dims& dims) const {
  const std::optional<Dims> twice = Twice(target, dims);
  if (!twice.has_value()) {
    const bool may_be_rows = target.kind == ProbeTarget::kBatch || dims[0] % size_ == 0;
    return may_be_rows ? BatchLayout::kNotKnown : BatchLayout::kNone;
  }
  if (*twice == dims) return BatchLayout::kNone;
  Dims expected = dims;
  expected[0] *= 2;
  const bool rows = dims[0] % size_ == 0 && *twice == expected;
  return rows ? BatchLayout::kRows : BatchLayout::kNotKnown;
}

}  // namespace espalier
