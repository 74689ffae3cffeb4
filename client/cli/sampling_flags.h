// The flags of `generate` that say how an answer is chosen and what form it has.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/flags.h"
#include "espalier/v1/inference.pb.h"

namespace espalier {

std::vector<FlagSpec> SamplingFlags();  // QueueFlags among them

// What embeddings have, too.
std::vector<FlagSpec> QueueFlags();

// Sets what QueueFlags say, of a GenerateRequest or an EmbedRequest.
template <typename Request>
void FillQueue(const ParsedFlags& flags, Request* request) {
  request->set_priority(static_cast<int32_t>(flags.Int("priority", 0)));
  request->set_cache_salt(flags.Text("cache-salt"));
  request->set_timeout_seconds(flags.Number("timeout", 0));
}

// Usage errors name the flag. Ranges are the coordinator's to check where they depend on the model.
absl::Status FillSampling(const ParsedFlags& flags, v1::GenerateRequest* request);

}  // namespace espalier
