// ResNet-50 and the 3D U-Net at their full depth, narrower and on smaller pictures than published,
// so that two cores train them: the handwritten digits, enlarged.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "storage/dataset.h"

namespace espalier {

struct ImageWorkload {
  std::string name, description;
  std::shared_ptr<const Dataset> dataset;
};

// "resnet50", "unet3d" or "unet3d_group_norm". Run from the repository.
absl::StatusOr<ImageWorkload> MakeImageWorkload(const std::string& name);

// Its training graph, bound to `batch`.
absl::StatusOr<Graph> ImageModelGraph(const OpRegistry& registry, const std::string& name,
                                      int64_t batch);

// Returns a dataset of the first `count` examples. `nudged`: moves every second pixel by one ULP,
// as different rounding would.
absl::StatusOr<std::shared_ptr<const Dataset>> FirstExamples(const Dataset& dataset, int64_t count,
                                                             bool nudged = false);

}  // namespace espalier
