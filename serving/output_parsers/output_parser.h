// Incremental parser of a chat completion. It splits the text that a model generates into
// reasoning, content and tool calls. The deltas add up to the same result however the text is cut
// into pieces.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "serving/output_parsers/reasoning_parser.h"
#include "serving/output_parsers/tool_call_parser.h"

namespace espalier {

enum class ToolChoice { kNone, kAuto, kRequired, kNamed };

// What of a call an answer ended in the middle of.
enum class UnfinishedCall { kNone, kHead, kArguments };

struct OutputParserOptions {
  ReasoningTags reasoning;  // empty: reasoning stays in the text
  bool begins_in_reasoning = false;
  const ToolCallParser* tool_parser = nullptr;  // REQUIRED unless the choice is kNone
  std::vector<Tool> tools;
  // kAuto: tool calls in the model's format, or an answer that is JSON tool calls as a whole. The
  // first object of such an answer must begin with a key of a call; other JSON is content and is
  // streamed at once. kRequired: a JSON list of calls, which is never content, even if it is cut
  // off. kNamed: the arguments of one call.
  // tool_choice.h builds the grammars of the last two.
  ToolChoice choice = ToolChoice::kNone;
  // kAuto: the content may be JSON, which is no call unless the tool parser allows untagged calls.
  bool text_is_constrained = false;
  bool single_call = false;  // keep the first call; the answer ends where a second one begins
  std::string named_tool;    // kNamed: the tool
  std::string id;            // prefix of the tool call ids
  uint64_t short_id = 0;  // seed of ids of nine letters and digits, see ToolCallParser::short_ids
};

// A tool call, or a streamed part of one. Only the first part has the name and the id.
struct ToolCallDelta {
  int index = 0;
  std::string id;
  std::string name;
  std::string arguments;
  size_t text_before = 0;  // bytes of the same OutputDelta's text that precede this part
};

struct OutputDelta {
  std::string reasoning;
  std::string text;
  std::vector<ToolCallDelta> calls;
};

class OutputParser {
 public:
  explicit OutputParser(OutputParserOptions options);

  // Returns what `text` adds.
  OutputDelta Append(const std::string& text);
  // Returns what was held back. Call once, at the end of the answer.
  OutputDelta Finish();

  // Whether there was a tool call, finished or not.
  bool has_tool_calls() const { return next_index_ > 0; }
  // Where the answer's last call was cut off. Valid after Finish.
  UnfinishedCall unfinished_call() const { return unfinished_call_; }
  bool reasoning_ended() const { return reasoning_.done(); }
  // The answer is over: the rest of the model's output is to be dropped.
  bool done() const { return done_; }

 private:
  enum class State { kUndecided, kText, kInSection, kWhole };

  void Take(const std::string& text, OutputDelta* out);
  void ParseText(OutputDelta* out);
  // Call before adding a tool call. Returns true, and ends the answer, if it is one too many.
  bool StopAtExtraCall();
  // Streams the calls of a section, or of an answer that is calls as a whole. `end` is where its
  // text ends, or npos if that is not known. Returns false if it needs more text.
  bool ParseCallsIncrementally(size_t end, OutputDelta* out);
  // Adds the calls in `text`. Returns false if there are none.
  bool AddCalls(std::vector<ToolCall> calls, OutputDelta* out);
  // Parses the complete text of a section or of an untagged answer.
  std::vector<ToolCall> ParseCalls(absl::string_view text) const;
  // Adds the text between the last streamed call and the end of its section: as calls that could
  // not be streamed, or as content. Returns false if it was content.
  bool AddRemainder(absl::string_view rest, OutputDelta* out);
  std::string ToolCallId(int index) const;
  // Parses the end of an answer that ended within a section, or is calls as a whole.
  void FinishCalls(const std::string& rest, OutputDelta* out);
  // Returns where the first section opens in buffer_, or npos; sets section_.
  size_t FindOpen();
  // Returns where the text of the open section ends and where its closing tag ends, or npos twice.
  std::pair<size_t, size_t> FindClose() const;

  const OutputParserOptions options_;
  const std::vector<ToolCallParser::Section> sections_;
  ReasoningParser reasoning_;
  State state_ = State::kUndecided;
  const ToolCallParser::Section* section_ = nullptr;
  std::string buffer_;       // kNamed: all of the arguments; otherwise what is not parsed yet
  bool after_call_ = false;  // with nothing but whitespace since
  std::unique_ptr<ToolArgumentsParser> arguments_;  // of the call in progress
  int streamed_calls_ = 0;  // calls of this section, or untagged answer, that were streamed
  int next_index_ = 0;
  UnfinishedCall unfinished_call_ = UnfinishedCall::kNone;
  bool done_ = false;
};

}  // namespace espalier
