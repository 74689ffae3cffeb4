// Test helper: splits one answer of texts and calls into replies at arbitrary positions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "espalier/v1/inference.pb.h"

namespace espalier {

struct AnswerPart {
  std::string call_id;  // empty: a text
  std::string what;     // the text, or the call's arguments
};

inline std::vector<AnswerPart> TextsBetweenCalls() {
  return {{"", "Let me see."},
          {"call_1", R"({"city":"Ur"})"},
          {"", "And there?"},
          {"call_2", R"({"city":"And there? Uz"})"},
          {"", "Now I wait."}};
}

// Splits before characters `first` and `second`. Each character is a token whose logprob is its
// negated index.
inline std::vector<v1::GenerateReply> SplitIntoReplies(const std::vector<AnswerPart>& parts,
                                                       size_t first, size_t second) {
  std::vector<v1::GenerateReply> replies(1);
  size_t at = 0;
  int index = -1;
  for (const AnswerPart& part : parts) {
    const bool is_call = !part.call_id.empty();
    if (is_call) ++index;
    for (size_t i = 0; i < part.what.size(); ++i, ++at) {
      if (at == first || at == second) replies.emplace_back();
      v1::GenerateReply& reply = replies.back();
      v1::TokenLogprobs* token = reply.add_logprobs();
      token->set_text(part.what.substr(i, 1));
      token->set_logprob(-static_cast<double>(at));
      if (!is_call) {
        reply.mutable_text()->push_back(part.what[i]);
        continue;
      }
      if (i == 0 || reply.tool_calls().empty()) {
        v1::ToolCall* call = reply.add_tool_calls();
        call->set_index(index);
        call->set_text_before(static_cast<int>(reply.text().size()));
        if (i == 0) call->set_id(part.call_id);
        if (i == 0) call->set_name("rain");
      }
      reply.mutable_tool_calls()->rbegin()->mutable_arguments()->push_back(part.what[i]);
    }
  }
  return replies;
}

}  // namespace espalier
