// Takes an answer apart as it comes: thoughts, text, calls of tools. However it is cut into pieces,
// the parts together are the same.
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

struct OutputParserOptions {
  ReasoningTags reasoning;  // empty: thoughts are text
  bool begins_in_reasoning = false;
  const ToolCallParser* tool_parser = nullptr;  // REQUIRED unless the choice is kNone
  std::vector<Tool> tools;
  // kAuto: calls in the model's tool_parser, or an answer that as a whole is JSON calls of tools. Its
  // first object must begin with a key that such have: other JSON is text, which does not wait.
  // kRequired: a JSON list of calls; kNamed: the arguments of one call. Both as the grammar of
  // tool_choice.h has them.
  ToolChoice choice = ToolChoice::kNone;
  // kAuto: text may be JSON, which is no call unless the tool_parser goes without marks.
  bool text_is_constrained = false;
  bool single_call = false;  // the first one only: the answer is over where a second one begins
  std::string named_tool;        // kNamed: the tool
  std::string id;            // with which the ids of its calls begin
  uint64_t short_id = 0;     // what ids of nine letters and digits are made of
};

// A call, or in a stream a part of one: the name and id come with its first part.
struct ToolCallDelta {
  int index = 0;
  std::string id;
  std::string name;
  std::string arguments;
  size_t text_before = 0;  // bytes of the same OutputDelta's text that were said before this
};

struct OutputDelta {
  std::string reasoning;
  std::string text;
  std::vector<ToolCallDelta> calls;
};

class OutputParser {
 public:
  explicit OutputParser(OutputParserOptions options);

  OutputDelta Append(const std::string& text);
  OutputDelta Finish();

  // Whether there was a call.
  bool has_tool_calls() const { return next_index_ > 0; }
  bool reasoning_ended() const { return reasoning_.done(); }
  // What comes next is no part of the answer.
  bool done() const { return done_; }

 private:
  enum class State { kUndecided, kText, kInSection, kWhole };

  void Take(const std::string& text, OutputDelta* out);
  void ParseText(OutputDelta* out);
  // Before a call is added. True: it is one too many, and with it the answer is over.
  bool StopAtExtraCall();
  // Passes on calls as they come, of a section or a whole answer whose text ends at `end`, if that
  // is known. False: nothing more can be told without more text.
  bool ParseCallsIncrementally(size_t end, OutputDelta* out);
  // Adds the calls that this text holds. False if it is something else.
  bool AddCalls(std::vector<ToolCall> calls, OutputDelta* out);
  // The calls of a section or a whole answer, all of whose text this is.
  std::vector<ToolCall> ParseCalls(absl::string_view text) const;
  // Adds what comes, up to the end of a section or a whole answer, behind the last call in it that
  // was passed on: calls that cannot be, or else text. False if that was added.
  bool AddRemainder(absl::string_view rest, OutputDelta* out);
  std::string ToolCallId(int index) const;
  // The first section that opens in what is held; npos: none.
  size_t FindOpen();
  // Where the section ends that is open: of its text, and behind its mark. npos: not yet.
  std::pair<size_t, size_t> FindClose() const;

  const OutputParserOptions options_;
  const std::vector<ToolCallParser::Section> sections_;
  ReasoningParser reasoning_;
  State state_ = State::kUndecided;
  const ToolCallParser::Section* section_ = nullptr;
  std::string held_;
  bool after_call_ = false;                     // and nothing but blanks since
  std::unique_ptr<ToolArgumentsParser> arguments_;  // of the call that is under way
  int begun_ = 0;  // calls of this section, or whole answer, that were begun
  int next_index_ = 0;
  bool done_ = false;
};

}  // namespace espalier
