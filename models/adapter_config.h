// What is said of a low-rank adapter (LoRA, Hu et al. 2021) in the adapter_config.json of the PEFT
// library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

constexpr int64_t kMaxAdapterRank = 4096;

struct AdapterConfig {
  int64_t rank = 0;
  double scale = 0;  // of B A: alpha / rank or, rank-stabilised, alpha / sqrt(rank)
  // Ends of the names of the matrices that are changed; empty: whatever the weights name.
  std::vector<std::string> targets;
};

// InvalidArgument for text that is no JSON object or a field that is missing, of the wrong type or
// out of range; Unimplemented, by name, for other methods than LoRA (DoRA, ...) and for every
// switch that changes the mathematics, or may, because it is not known.
absl::StatusOr<AdapterConfig> ReadAdapterConfig(absl::string_view json);

}  // namespace espalier
