// The flags of `generate` for sampling and structured output.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/flags.h"
#include "espalier/v1/inference.pb.h"

namespace espalier {

std::vector<FlagSpec> SamplingFlags();  // includes QueueFlags

// Flags that apply to embeddings too: priority, cache salt, timeout.
std::vector<FlagSpec> QueueFlags();

// Fills in QueueFlags' values in a GenerateRequest or an EmbedRequest.
template <typename Request>
void FillQueue(const ParsedFlags& flags, Request* request) {
  request->set_priority(static_cast<int32_t>(flags.Int("priority", 0)));
  request->set_cache_salt(flags.Text("cache-salt"));
  request->set_timeout_seconds(flags.Number("timeout", 0));
}

// Usage errors name the flag. The coordinator checks ranges that depend on the model.
absl::Status FillSampling(const ParsedFlags& flags, v1::GenerateRequest* request);

}  // namespace espalier
