// Finds calls of tools in an answer as it comes, and keeps them apart from its text.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "server/http/openai_request.h"
#include "server/http/openai_response.h"

namespace espalier::openai {

// Where the model may choose: what is between <tool_call> and </tool_call> (Hermes, Qwen), or an
// answer that is as a whole one JSON object {"name": ..., "arguments" or "parameters": {...}} with
// the name of a tool, or a list of such (Llama). Whatever turns out to be none is text. Where a
// call must be made, the answer is what ReadTools demanded of it.
class ToolCallReader {
 public:
  // `id` is the beginning of the calls' ids.
  ToolCallReader(const Request& request, std::string id);

  struct Output {
    std::string text;
    std::vector<ToolCall> calls;
  };
  Output Append(const std::string& text);
  Output Finish();

  // Whether there was a call; then the finish_reason is "tool_calls".
  bool called() const { return next_index_ > 0; }

 private:
  enum class State { kUndecided, kText, kInTag, kWhole };

  void ReadText(Output* out);
  // Adds the calls that this JSON text holds. False if it is something else.
  bool ReadCalls(const std::string& text, Output* out);

  const ToolChoice choice_;
  const std::string named_;
  std::set<std::string> names_;
  const std::string id_;
  State state_ = State::kUndecided;
  std::string held_;
  bool after_call_ = false;  // and nothing but blanks since
  int next_index_ = 0;
};

}  // namespace espalier::openai
