// Served models with LoRA adapters. Every adapted linear layer gets a lora_linear over all
// adapters, and each row of a batch selects its adapter.
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

// An adapter as stored in its files.
struct LoraAdapter {
  std::string name;  // for messages
  AdapterConfig config;
  std::map<std::string, Dims> tensors;  // of adapter_model.safetensors
};

// One adapter's matrix within a parameter [adapters, rows, columns].
struct AdapterMatrix {
  std::string tensor;  // in the adapter's files; empty: the adapter does not change this layer
  // Rows [begin, end) of the tensor, concatenated; its columns are the parameter's first ones. The
  // rest of the matrix is 0.
  std::vector<std::pair<int64_t, int64_t>> rows;
  double scale = 1;
};

struct LoraModel {
  // Has one more input, "row_adapter" i32[max_rows]: the index of an adapter, or -1. The new
  // parameters have no pieces in the WeightMap.
  ServingModel model;
  std::map<std::string, std::vector<AdapterMatrix>> parameters;  // by adapter
};

// Adapters use PEFT's names: base_model.model.<module>.lora_A.weight [rank, in] and lora_B.weight
// [out, rank], where <module> is the model's name of a linear layer (a fused one, if its files
// fuse). REQUIRES: the graph's types are inferred; they are in the result, too. Returns
// InvalidArgument with adapter and tensor for a tensor with no counterpart, no partner or the wrong
// shape, and for a target that the model has but the files have no tensors for; Unimplemented for
// adapters of embeddings or of experts.
absl::StatusOr<LoraModel> AddLoraAdapters(const OpRegistry& registry, ServingModel model,
                                          absl::Span<const LoraAdapter> adapters);

}  // namespace espalier
