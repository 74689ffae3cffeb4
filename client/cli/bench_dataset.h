// Prompts of one's own, from the files that `vllm bench serve` reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

struct DatasetPrompt {
  std::string text;
  int64_t output_tokens = 0;  // that the record asks for; 0: it does not say
};

// JSON lines, or one JSON array, of records that are either {"prompt": TEXT, "output_tokens": N},
// the number optional, or ShareGPT's {"conversations": [{"from": WHO, "value": TEXT}, ...]}, of
// which the first turn is asked; conversations of fewer than two turns are left out. In an order
// that depends on `seed`. Usage errors name the file and the record.
absl::StatusOr<std::vector<DatasetPrompt>> ReadDataset(const std::string& path, uint64_t seed);

}  // namespace espalier
