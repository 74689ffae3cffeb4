// Loads trained graphs and ONNX files from artifacts, on a device of this process.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "ops/schema/registry.h"
#include "server/artifacts/artifact_store.h"
#include "server/inference/prediction/graph_loader.h"
#include "worker/device/memory_budget.h"

namespace espalier {

struct ArtifactGraphLoaderOptions {
  const OpRegistry* operators = nullptr;
  std::function<absl::StatusOr<v1::Artifact>(const std::string& artifact)> find;
  std::function<absl::StatusOr<ArtifactFolder>(const std::string& artifact)> folder;
  int threads = 0;                       // for kernels; 0: all cores
  std::shared_ptr<MemoryBudget> memory;  // shared with the other models of this process
  const Clock* clock = nullptr;
};

std::unique_ptr<GraphLoader> NewArtifactGraphLoader(ArtifactGraphLoaderOptions options);

}  // namespace espalier
