// Formats an answer for the Responses API: output items, and the events of a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "espalier/v1/inference.pb.h"
#include "server/http/response_formatter.h"
#include "server/http/responses/input_items.h"

namespace espalier::openai {

struct ResponseHead {
  std::string id;
  std::string model;
  int64_t created_unix_seconds = 0;
  // Request fields that the response repeats, the effective temperature and top_p, and whether it
  // is stored.
  nlohmann::ordered_json echo;
  bool with_logprobs = false;
  bool include_reasoning = true;
};

class ResponsesFormatter : public ResponseFormatter {
 public:
  ResponsesFormatter(ResponseHead head, ItemIds ids, bool streams);

  size_t CountValues(const v1::GenerateReply* reply, bool last) override;
  void Queue() override;
  void Begin() override;
  void Add(int prompt, const v1::GenerateReply& reply) override;
  void Finish(const v1::GenerateReply& last, int64_t now_unix_seconds) override;
  void Fail(const Error& error) override;
  void Cancel() override;
  bool over() const override { return over_; }
  nlohmann::ordered_json Object() const override;

 private:
  enum class Open { kNone, kReasoning, kMessage, kCall };

  void Emit(const char* type, nlohmann::ordered_json fields);
  void EmitResponse(const char* type);
  // Event fields that identify the open item's only part or its arguments.
  nlohmann::ordered_json Place(bool part) const;
  void OpenItem(Open kind, nlohmann::ordered_json item);
  void CloseItem(const char* status);
  nlohmann::ordered_json OpenPart() const;
  nlohmann::ordered_json OpenItemNow(const char* status) const;
  void AddReasoning(const std::string& text);
  // `last`: no further text or call follows in the same reply.
  void AddText(const std::string& text, bool last);
  void AddCall(const v1::ToolCall& call);
  void AlignLogprobs(const std::string& text, bool last);
  std::string WaitingBytes() const;
  // Accounts for the bytes of waiting tokens up to the end of `bytes`.
  void SkipWaiting(const std::string& bytes);
  // Drops all but the last `count` waiting tokens.
  void KeepWaiting(size_t count);
  nlohmann::ordered_json TakeLogprobs();
  void End(const char* status, const char* item_status, const char* event);

  const ResponseHead head_;
  ItemIds ids_;
  size_t values_seen_ = 0;  // used by CountValues only
  int64_t sequence_ = 0;
  std::string status_ = "in_progress";
  bool over_ = false;
  nlohmann::ordered_json output_ = nlohmann::ordered_json::array();  // the last one may be open
  Open open_ = Open::kNone;
  std::string text_;                        // text or arguments of the open item
  nlohmann::ordered_json logprobs_;         // of the open message
  std::vector<v1::TokenLogprobs> waiting_;  // tokens whose text has not come yet
  int64_t waiting_at_ = 0;                  // offset of the first of them in the message's text
  size_t skipped_ = 0;                      // lower bound on their bytes in reasoning or calls
  bool hidden_ = false;                     // some of their bytes may be such
  nlohmann::ordered_json error_, incomplete_, usage_, completed_at_;
};

}  // namespace espalier::openai
