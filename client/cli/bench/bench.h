// The two modes of `bench`: a model under load, as `vllm bench serve`, and a single request, as
// `llama-bench`.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/command.h"
#include "client/cli/generation.h"
#include "espalier/v1/inference.pb.h"

namespace espalier {

// Builds the request that `flags` describe: greedy by default, and ignoring end-of-sequence tokens
// unless the output is structured. Usage errors name the flag.
absl::StatusOr<v1::GenerateRequest> BenchRequest(const ParsedFlags& flags);

// Runs the request over gRPC, or with --http through the gateway.
absl::StatusOr<Generation> BenchGenerate(Context& context, const v1::GenerateRequest& request);

// Returns the served model named by the first argument; NotFound lists the served models.
absl::StatusOr<v1::ServedModel> BenchModel(Context& context);

// Sets a prompt of `count` tokens that depend on `seed` only and rarely occur in another prompt, so
// that prefix caches miss.
void SetRandomPrompt(uint64_t seed, int64_t count, int vocabulary, v1::GenerateRequest* request);

absl::Status RunLoad(Context& context);           // load.cc
absl::Status RunSingleRequest(Context& context);  // single_request.cc

}  // namespace espalier
