// Reads adapter_config.json, in which the PEFT library describes a LoRA adapter (Hu et al. 2021).
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
  double scale = 0;  // of B A: alpha / rank or, rank-stabilized, alpha / sqrt(rank)
  // Suffixes of the names of the adapted matrices; empty: those that the weights name.
  std::vector<std::string> targets;
};

// Returns InvalidArgument if the text is not a JSON object or a field is missing, of the wrong type
// or out of range. Returns Unimplemented, by name, for methods other than LoRA (DoRA, ...) and for
// every switch that changes the mathematics or is unknown.
absl::StatusOr<AdapterConfig> ReadAdapterConfig(absl::string_view json);

}  // namespace espalier
