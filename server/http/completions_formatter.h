// Formats an answer for the completions and chat completions APIs: one or several choices for each
// of the request's prompts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "espalier/v1/inference.pb.h"
#include "server/http/openai_request.h"
#include "server/http/openai_response.h"
#include "server/http/response_formatter.h"

namespace espalier::openai {

// The fields of a request that shape its answer. The rest may be large and is not kept.
struct CompletionShape {
  int prompts = 1;
  int choices_per_prompt = 1;
  // Alternatives to show of each token; absent: no logprobs.
  std::optional<int> logprobs, prompt_logprobs;
  bool echo_prompt = false;  // the logprobs of its tokens precede the answer's
  std::string echo_text;     // chats: text that precedes each answer
  bool include_reasoning = true;
  bool include_usage = false;
  bool usage_in_every_chunk = false;
  bool return_token_ids = false;
  bool tokens_as_ids = false;
};

CompletionShape ShapeOf(const Request& request);

class CompletionsFormatter : public ResponseFormatter {
 public:
  CompletionsFormatter(Head head, CompletionShape shape, bool streams);

  size_t CountValues(const v1::GenerateReply* reply, bool last) override;
  void Begin() override {}
  void Add(int prompt, const v1::GenerateReply& reply) override;
  void Finish(const v1::GenerateReply& last, int64_t now_unix_seconds) override;
  void Fail(const Error& error) override;
  void Cancel() override { over_ = true; }
  bool shows_cancellation() const override { return true; }
  bool over() const override { return over_; }
  nlohmann::ordered_json Object() const override;

 private:
  struct StreamedChoice {
    bool begun = false;
    int text_offset = 0;  // see ChoicePart
  };

  // Returns a choice without content.
  ChoicePart EmptyPart(int index) const;
  ChoicePart PartOf(int index, const v1::GenerateReply& reply) const;
  void Collect(ChoicePart part);
  void Stream(ChoicePart part);
  void AddChunk(std::string chunk);
  // Adds to the usage that chunks report while the answer runs.
  void CountSoFar(int prompt, const v1::GenerateReply& reply);
  void CountUsage(const v1::Usage& usage);

  const Head head_;
  const CompletionShape shape_;
  size_t values_collected_ = 0;           // used by CountValues only
  std::vector<StreamedChoice> streamed_;  // empty unless streamed
  std::vector<ChoicePart> collected_;     // all parts so far; empty if streamed
  v1::Usage usage_;                       // of the prompts that have ended
  v1::Usage so_far_;                      // counted from the replies
  std::set<int> counted_prompts_;         // in so_far_
  bool over_ = false;
};

}  // namespace espalier::openai
