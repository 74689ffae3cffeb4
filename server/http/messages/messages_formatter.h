// Formats an answer for Anthropic's Messages API: blocks of thinking, text and tool use.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "espalier/v1/inference.pb.h"
#include "server/http/response_formatter.h"

namespace espalier::anthropic {

struct MessageHead {
  std::string id;
  std::string model;
  int max_tokens = 0;
  bool include_thinking = true;
};

// REQUIRES: the first reply has the prompt's tokens (GenerateRequest.return_prompt_tokens), which a
// stream counts in its first event.
class MessagesFormatter : public ResponseFormatter {
 public:
  MessagesFormatter(MessageHead head, bool streams);

  void Begin() override {}
  void Add(int prompt, const v1::GenerateReply& reply) override;
  void Finish(const v1::GenerateReply& last, int64_t now_unix_seconds) override;
  void Fail(const openai::Error& error) override;
  void Cancel() override { over_ = true; }
  bool over() const override { return over_; }
  nlohmann::ordered_json Object() const override;

 private:
  void Emit(const char* type, nlohmann::ordered_json fields);
  void Open(nlohmann::ordered_json block);
  // Returns whether the open block is of this type.
  bool IsOpen(const char* type) const;
  void AddDelta(const char* delta_type, const char* field, const std::string& text);
  void AddText(const std::string& text);
  void AddCall(const v1::ToolCall& call);
  void Close();

  const MessageHead head_;
  bool begun_ = false;
  bool over_ = false;
  nlohmann::ordered_json content_ = nlohmann::ordered_json::array();  // the last one may be open
  bool open_ = false;
  std::string text_;  // of the open block
  nlohmann::ordered_json stop_reason_, stop_sequence_, usage_;
};

}  // namespace espalier::anthropic
