#include "ops/graph/infer_types.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// Types are inferred for static shapes only, so an open batch is inferred for three sizes. These
// have all small factors, for reshapes that want their product divided.
constexpr int64_t kBatch = 2 * 2 * 2 * 2 * 3 * 3 * 5 * 7;
constexpr std::array<int64_t, 3> kBatches = {kBatch, 2 * kBatch, 3 * kBatch};

bool HasOpenBatch(const Graph& graph) {
  return std::any_of(graph.values().begin(), graph.values().end(), [](const Value& value) {
    return value.kind == ValueKind::kInput && !value.type.dims.empty() && value.type.dims[0] == -1;
  });
}

absl::StatusOr<std::vector<TensorType>> InferStatic(const OpRegistry& registry, Graph graph,
                                                    int64_t batch) {
  if (absl::Status s = BindAndInfer(registry, batch, &graph); !s.ok()) return s;
  std::vector<TensorType> types;
  for (const Value& value : graph.values()) types.push_back(value.type);
  return types;
}

// Makes the dimension that has these sizes with the three batch sizes one of an open batch.
absl::StatusOr<int64_t> OpenDimension(const std::array<int64_t, 3>& sizes) {
  const int64_t step = sizes[1] - sizes[0];
  if (step == 0 && sizes[2] == sizes[0]) return sizes[0];
  // Multiples of the batch only.
  if (step > 0 && sizes[0] == step && sizes[2] - sizes[1] == step && step % kBatch == 0) {
    return -step / kBatch;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("is ", sizes[0], " for a batch of ", kBatches[0], ", ", sizes[1], " for ",
                   kBatches[1], " and ", sizes[2], " for ", kBatches[2],
                   ": no multiple of the batch size; give a batch_size to infer for"));
}

}  // namespace

absl::StatusOr<std::vector<TensorType>> InferTypes(const OpRegistry& registry, const Graph& graph,
                                                   int64_t batch) {
  if (batch < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "batch_size is ", batch, "; accepted: a positive number, or 0 for an open batch"));
  }
  if (batch > 0 || !HasOpenBatch(graph)) {
    return InferStatic(registry, graph, std::max<int64_t>(batch, 1));
  }
  std::array<std::vector<TensorType>, 3> by_batch;
  for (size_t i = 0; i < kBatches.size(); ++i) {
    absl::StatusOr<std::vector<TensorType>> types = InferStatic(registry, graph, kBatches[i]);
    if (!types.ok()) {
      return absl::Status(types.status().code(),
                          absl::StrCat(types.status().message(), " (inferred with a batch of ",
                                       kBatches[i], ", as the request leaves it open)"));
    }
    by_batch[i] = *std::move(types);
  }
  std::vector<TensorType> open = by_batch[0];
  for (size_t v = 0; v < open.size(); ++v) {
    const Value& value = graph.value(static_cast<ValueId>(v));
    const auto at = [&](const std::string& what) {
      const std::string node =
          value.producer == kNoNode ? "" : absl::StrCat(Describe(graph.node(value.producer)), ": ");
      return absl::StrCat(node, "value '", value.name, "': ", what);
    };
    for (const std::vector<TensorType>& other : by_batch) {
      if (other[v].dims.size() != open[v].dims.size() || other[v].dtype != open[v].dtype) {
        return absl::InvalidArgumentError(
            at("its rank or element type depends on the batch size; give a batch_size"));
      }
    }
    for (size_t d = 0; d < open[v].dims.size(); ++d) {
      absl::StatusOr<int64_t> dim =
          OpenDimension({by_batch[0][v].dims[d], by_batch[1][v].dims[d], by_batch[2][v].dims[d]});
      if (!dim.ok()) {
        return absl::InvalidArgumentError(
            at(absl::StrCat("dimension ", d, " ", dim.status().message())));
      }
      open[v].dims[d] = *dim;
    }
  }
  return open;
}

}  // namespace espalier
