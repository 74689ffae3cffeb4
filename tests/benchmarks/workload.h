// The benchmarks' training workloads by name, so that processes can refer to them.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "espalier/v1/program.pb.h"
#include "models/llama.h"
#include "ops/graph/graph.h"
#include "storage/dataset.h"
#include "tests/benchmarks/seconds.h"

namespace espalier {

struct Workload {
  std::string name;
  std::string description;
  Graph graph;  // bound
  std::shared_ptr<const Dataset> dataset;
  int64_t batch = 0;
  double tokens_per_step = 0;
  std::map<std::string, std::string> columns;
  v1::Optimizer optimizer;  // AdamW, gradients clipped to norm 1
};

// "cnn": the digits CNN from ONNX, batch 512. "lm": a LLaMA of 4 layers, hidden 256, batch 8 of 128
// tokens. "llm", "ssm": what the quickstart trains, batch 16 of 128 tokens. "mlp": four wide
// layers, more parameters than activations, batch 240. "resnet": ResNet-50, narrow, on pictures of
// 64 x 64, more activations than parameters, batch 12. The last two train on noise. `batch`, if not
// 0, replaces that. Files are found from the repository's root.
absl::StatusOr<Workload> MakeWorkload(const OpRegistry& registry, const std::string& name,
                                      int64_t batch = 0);

// The configuration of "lm", "llm" and "ssm".
LlamaConfig LlamaOf(const std::string& name);

}  // namespace espalier
