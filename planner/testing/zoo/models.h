// The models of the zoo, one file per family.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "ops/schema/registry.h"

namespace espalier::zoo {

absl::StatusOr<Graph> BuildAlexNet(const OpRegistry& registry);
absl::StatusOr<Graph> BuildResNet50(const OpRegistry& registry);
absl::StatusOr<Graph> BuildInceptionV3(const OpRegistry& registry);
absl::StatusOr<Graph> BuildDlrm(const OpRegistry& registry);
absl::StatusOr<Graph> BuildBertLarge(const OpRegistry& registry);
absl::StatusOr<Graph> BuildUnet3d(const OpRegistry& registry);

struct GptSizes {
  int layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t sequence = 0;
  int64_t vocabulary = 0;
};
absl::StatusOr<Graph> BuildGpt(const OpRegistry& registry, const std::string& name,
                               const GptSizes& sizes);

// `body.hidden` * 8 is the inner width of an expert and of a feed-forward layer without experts.
struct MoeSizes {
  GptSizes body;
  int64_t experts = 0;
};
absl::StatusOr<Graph> BuildMoe(const OpRegistry& registry, const std::string& name,
                               const MoeSizes& sizes);

}  // namespace espalier::zoo
