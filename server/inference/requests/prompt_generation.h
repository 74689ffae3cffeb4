// The answers of one prompt on an engine, from their submission to their last replies.
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

// What the prompts of one request share, since it may be large.
struct GenerationContext {
  std::shared_ptr<const v1::GenerateRequest> request;  // what is in its options may be missing
  std::shared_ptr<const RequestOptions> options;          // all but the seed
  bool has_request_stops = false;          // the request does; those of the options may be the model's
  std::weak_ptr<LoadedModel> model;  // which a client that waits must not keep from being unloaded
  std::string model_name;
  AsyncEngine* engine = nullptr;         // of the model
  ServingMetrics* metrics = nullptr;  // optional
};

class PromptGeneration : public Generation {
 public:
  // Once. `arrival`: when the request did, whose timeout counts from then on. REQUIRES: the caller
  // holds the model, or is on its engine's thread.
  virtual absl::Status Submit(std::vector<int> tokens, uint64_t seed, absl::Time arrival) = 0;
};

// Answers to each prompt, those that compete among them.
size_t AnswersPerPrompt(const v1::GenerateRequest& request);

// `echo`: what the answers begin with. Chats bring how their answers are read.
std::shared_ptr<PromptGeneration> NewPromptGeneration(const GenerationContext& context,
                                                GenerationListener listener, std::string echo,
                                                const std::optional<OutputParserOptions>& reading);

}  // namespace espalier
