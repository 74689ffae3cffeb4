// The two kinds of `bench`: a model under load, as `vllm bench serve` measures it, and one request
// alone, as `llama-bench` does.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/command.h"
#include "client/cli/generation.h"
#include "espalier/v1/inference.pb.h"

namespace espalier {

// Greedy unless the flags say otherwise, and never ended by an end of sequence where they have no
// form. Usage errors name the flag.
absl::StatusOr<v1::GenerateRequest> BenchRequest(const ParsedFlags& flags);

// Over gRPC, or with --http through the gateway.
absl::StatusOr<Generation> BenchGenerate(Context& context, const v1::GenerateRequest& request);

// The served model of the first argument; NotFound names those that there are.
absl::StatusOr<v1::ServedModel> BenchModel(Context& context);

// `count` tokens that depend on `seed` alone and hardly occur in another prompt, so that no prefix
// cache knows them.
void SetRandomPrompt(uint64_t seed, int64_t count, int vocabulary, v1::GenerateRequest* request);

absl::Status RunLoad(Context& context);   // bench_load.cc
absl::Status RunSingleRequest(Context& context);  // bench_single_request.cc

}  // namespace espalier
