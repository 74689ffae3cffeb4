// Prompt datasets in the formats that `vllm bench serve` reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

struct DatasetPrompt {
  std::string text;
  int64_t output_tokens = 0;  // requested by the record; 0: not given
};

// Reads JSON lines, or one JSON array, of records: either {"prompt": TEXT, "output_tokens": N} with
// an optional number, or ShareGPT's {"conversations": [{"from": WHO, "value": TEXT}, ...]}, whose
// first turn is the prompt; conversations of fewer than two turns are skipped. The order depends on
// `seed`. Usage errors name the file and the record.
absl::StatusOr<std::vector<DatasetPrompt>> ReadDataset(const std::string& path, uint64_t seed);

}  // namespace espalier
