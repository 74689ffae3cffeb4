// The models of the zoo, one file per family.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "ops/schema/registry.h"

namespace espalier::zoo {

absl::StatusOr<Graph> BuildAlexNet(const OpRegistry& registry);

// Sizes as published by default; tests run narrower ones.
struct ResNetSizes {
  int64_t edge = 224;  // of the images, in pixels
  int64_t channels = 3;
  int64_t width = 64;  // channels after the first convolution; all others are multiples
  int64_t classes = 1000;
};
absl::StatusOr<Graph> BuildResNet50(const OpRegistry& registry, const ResNetSizes& sizes = {});

absl::StatusOr<Graph> BuildInceptionV3(const OpRegistry& registry);
absl::StatusOr<Graph> BuildDlrm(const OpRegistry& registry);
absl::StatusOr<Graph> BuildBertLarge(const OpRegistry& registry);

struct Unet3dSizes {
  int64_t edge = 128;  // of the volumes, in voxels; a multiple of 8
  int64_t channels = 3;
  int64_t width = 32;  // channels after the first convolution; all others are multiples
  int64_t classes = 3;
  // 0: batch norm. Otherwise the groups of group norm, which does not couple examples.
  int64_t norm_groups = 0;
};
absl::StatusOr<Graph> BuildUnet3d(const OpRegistry& registry, const Unet3dSizes& sizes = {});

struct GptSizes {
  int layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t sequence = 0;
  int64_t vocabulary = 0;
};
absl::StatusOr<Graph> BuildGpt(const OpRegistry& registry, const std::string& name,
                               const GptSizes& sizes);

// `body.hidden` * 8 is the inner width of an expert and of a dense feed-forward layer.
struct MoeSizes {
  GptSizes body;
  int64_t experts = 0;
};
absl::StatusOr<Graph> BuildMoe(const OpRegistry& registry, const std::string& name,
                               const MoeSizes& sizes);

}  // namespace espalier::zoo
