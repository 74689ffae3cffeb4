// Takes an answer apart as it comes: thoughts, text, calls of tools. However it is cut into pieces,
// the parts together are the same.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "serving/output_parsers/answer_style.h"
#include "serving/output_parsers/tool_style.h"

namespace espalier {

enum class ToolChoice { kNone, kAuto, kRequired, kNamed };

struct AnswerReaderOptions {
  ReasoningMarks reasoning;  // empty: thoughts are text
  bool begins_in_reasoning = false;
  const ToolStyle* style = nullptr;  // REQUIRED unless the choice is kNone
  std::vector<Tool> tools;
  // kAuto: calls in the model's style, or an answer that as a whole is JSON calls of tools. Its
  // first object must begin with a key that such have: other JSON is text, which does not wait.
  // kRequired: a JSON list of calls; kNamed: the arguments of one call. Both as the grammar of
  // tool_choice.h has them.
  ToolChoice choice = ToolChoice::kNone;
  // kAuto: text may be JSON, which is no call unless the style goes without marks.
  bool text_has_form = false;
  bool single_call = false;  // the first one only: the answer is over where a second one begins
  std::string named;         // kNamed: the tool
  std::string id;            // with which the ids of its calls begin
  uint64_t short_id = 0;     // what ids of nine letters and digits are made of
};

// A call, or in a stream a part of one: the name and id come with its first part.
struct ToolCallPart {
  int index = 0;
  std::string id;
  std::string name;
  std::string arguments;
  size_t text_before = 0;  // bytes of the same AnswerPart's text that were said before this
};

struct AnswerPart {
  std::string reasoning;
  std::string text;
  std::vector<ToolCallPart> calls;
};

// Splits thoughts from what follows. Blanks around thoughts, and before what follows, are dropped.
class ReasoningReader {
 public:
  ReasoningReader(ReasoningMarks marks, bool begins_inside);

  void Append(absl::string_view text, std::string* reasoning, std::string* rest);
  void Finish(std::string* reasoning, std::string* rest);

  // Whether what comes next cannot be a thought.
  bool over() const { return state_ == State::kBehind || state_ == State::kOver; }

 private:
  enum class State { kUndecided, kInside, kBehind, kOver };

  void Think(absl::string_view text, std::string* reasoning);

  const ReasoningMarks marks_;
  State state_;
  bool thought_ = false;  // something but blanks
  std::string held_;
};

class AnswerReader {
 public:
  explicit AnswerReader(AnswerReaderOptions options);

  AnswerPart Append(const std::string& text);
  AnswerPart Finish();

  // Whether there was a call.
  bool called() const { return next_index_ > 0; }
  bool reasoning_over() const { return reasoning_.over(); }
  // What comes next is no part of the answer.
  bool over() const { return over_; }

 private:
  enum class State { kUndecided, kText, kInSection, kWhole };

  void Take(const std::string& text, AnswerPart* out);
  void ReadText(AnswerPart* out);
  // Before a call is added. True: it is one too many, and with it the answer is over.
  bool OneTooMany();
  // Passes on calls as they come, of a section or a whole answer whose text ends at `end`, if that
  // is known. False: nothing more can be told without more text.
  bool ReadCalls(size_t end, AnswerPart* out);
  // Adds the calls that this text holds. False if it is something else.
  bool AddCalls(std::vector<ToolCall> calls, AnswerPart* out);
  // The calls of a section or a whole answer, all of whose text this is.
  std::vector<ToolCall> CallsOf(absl::string_view text) const;
  // Adds what comes, up to the end of a section or a whole answer, behind the last call in it that
  // was passed on: calls that cannot be, or else text. False if that was added.
  bool AddRest(absl::string_view rest, AnswerPart* out);
  std::string IdOf(int index) const;
  // The first section that opens in what is held; npos: none.
  size_t FindOpen();
  // Where the section ends that is open: of its text, and behind its mark. npos: not yet.
  std::pair<size_t, size_t> FindClose() const;

  const AnswerReaderOptions options_;
  const std::vector<ToolStyle::Section> sections_;
  ReasoningReader reasoning_;
  State state_ = State::kUndecided;
  const ToolStyle::Section* section_ = nullptr;
  std::string held_;
  bool after_call_ = false;                     // and nothing but blanks since
  std::unique_ptr<ArgumentsReader> arguments_;  // of the call that is under way
  int begun_ = 0;  // calls of this section, or whole answer, that were begun
  int next_index_ = 0;
  bool over_ = false;
};

}  // namespace espalier
