// Formats an answer for Ollama's API: objects on lines (NDJSON), or one object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "espalier/v1/inference.pb.h"
#include "server/http/response_formatter.h"

namespace espalier::ollama {

struct AnswerForm {
  std::string model;  // as the request names it
  bool chat = false;  // "message" instead of "response"
  bool include_thinking = true;
  bool logprobs = false;
  // Return the tokens of prompt and answer as "context". REQUIRES: the first reply has the prompt's
  // tokens.
  bool context = false;
};

// Returns a time as in "created_at": RFC 3339, UTC.
std::string TimeText(absl::Time time);

// The answer to a request that only loads a model.
nlohmann::ordered_json LoadedAnswer(const AnswerForm& form, absl::Time now);

// Calls of tools are sent whole: clients of this API get arguments as an object. A call that is cut
// is left out.
class OllamaFormatter : public ResponseFormatter {
 public:
  OllamaFormatter(AnswerForm form, const Clock* clock, bool streams);

  const char* stream_type() const override { return "application/x-ndjson"; }
  size_t CountValues(const v1::GenerateReply* reply, bool last) override;
  void Begin() override {}
  void Add(int prompt, const v1::GenerateReply& reply) override;
  void Finish(const v1::GenerateReply& last, int64_t now_unix_seconds) override;
  void Fail(const openai::Error& error) override;
  void Cancel() override { over_ = true; }
  bool over() const override { return over_; }
  nlohmann::ordered_json Object() const override { return object_; }

 private:
  // What an object of the answer says.
  struct Part {
    std::string text, thinking;
    nlohmann::ordered_json calls = nlohmann::ordered_json::array();
    nlohmann::ordered_json logprobs = nlohmann::ordered_json::array();
    bool empty() const {
      return text.empty() && thinking.empty() && calls.empty() && logprobs.empty();
    }
  };

  nlohmann::ordered_json ObjectOf(const Part& part) const;
  void AddCallPart(const v1::ToolCall& call);
  // Moves the open call, which is complete, to the pending part.
  void CloseCall();
  // Writes the pending part as a line of a stream; keeps it for a whole answer.
  void Flush();

  const AnswerForm form_;
  const Clock* const clock_;
  size_t values_collected_ = 0;  // used by CountValues only
  Part pending_;                 // of a whole answer: all parts
  bool call_open_ = false;
  v1::ToolCall call_;  // the open call so far
  int calls_ = 0;
  std::vector<int> tokens_;  // for "context"
  nlohmann::ordered_json object_;
  bool over_ = false;
};

}  // namespace espalier::ollama
