// Served models with low-rank adapters: beside every linear layer that one of them changes stands a
// lora_linear over all adapters, and each row of a batch says which one it has.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "models/adapter_config.h"
#include "models/model.h"

namespace espalier {

// An adapter as its files have it.
struct LoraAdapter {
  std::string name;  // for messages
  AdapterConfig config;
  std::map<std::string, Dims> tensors;  // of adapter_model.safetensors
};

// Part of a parameter [adapters, rows, columns]: the matrix of one adapter.
struct AdapterMatrix {
  std::string tensor;  // in the adapter's files; empty: it does not change this layer
  // Rows [begin, end) of it, one after another; its columns are the parameter's first ones. What is
  // left of the part is 0.
  std::vector<std::pair<int64_t, int64_t>> rows;
  double scale = 1;
};

struct LoraModel {
  // One more input, "row_adapter" i32[max_rows]: an adapter's index, -1 for none. The new
  // parameters have no pieces in the WeightMap.
  ServingModel model;
  std::map<std::string, std::vector<AdapterMatrix>> parameters;  // by adapter
};

// Adapters have PEFT's names: base_model.model.<module>.lora_A.weight [rank, in] and lora_B.weight
// [out, rank], where <module> is the model's own name of a linear layer (a fused one, where its
// files fuse). Types of the graph have been inferred, and are so again. InvalidArgument names
// adapter and tensor where a tensor has no counterpart, no partner or another shape, and a target
// of which the model has modules and the files no tensors; Unimplemented those that change
// embeddings or mixtures' experts.
absl::StatusOr<LoraModel> AddLoraAdapters(const OpRegistry& registry, ServingModel model,
                                         absl::Span<const LoraAdapter> adapters);

}  // namespace espalier
