// The answers to one prompt on an engine (n, best_of), from submission to last replies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/inference/requests/generation.h"
#include "serving/output_parsers/output_parser.h"
#include "serving/request/request.h"

namespace espalier {

// Shared by all prompts of a request, since it may be large.
struct GenerationContext {
  std::shared_ptr<const v1::GenerateRequest> request;  // without fields that `options` covers
  std::shared_ptr<const RequestOptions> options;       // all but the seed
  bool has_request_stops = false;    // stop strings are the request's, not the model's
  std::weak_ptr<LoadedModel> model;  // weak: must not keep an unloaded model alive
  std::string model_name;
  AsyncEngine* engine = nullptr;      // of the model
  ServingMetrics* metrics = nullptr;  // optional
};

class PromptGeneration : public Generation {
 public:
  // Call once. The timeout counts from `arrival`, when the request came. REQUIRES: the caller holds
  // the model or is on its engine's thread.
  virtual absl::Status Submit(std::vector<int> tokens, uint64_t seed, absl::Time arrival) = 0;
};

// Returns the number of answers generated per prompt: max(n, best_of).
size_t AnswersPerPrompt(const v1::GenerateRequest& request);

// `echo` precedes each answer. `parser_options`: for chats, how to parse the output.
std::shared_ptr<PromptGeneration> NewPromptGeneration(
    const GenerationContext& context, GenerationListener listener, std::string echo,
    const std::optional<OutputParserOptions>& parser_options);

}  // namespace espalier
