#include "server/http/messages/content_blocks.h"

#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/http/openai_chat.h"

namespace espalier::anthropic {
namespace {

using json = nlohmann::ordered_json;
using openai::IsOff;
using openai::JsonReader;

// Joins a string or a list of text blocks.
bool JoinTexts(const json& content, std::string* out) {
  if (content.is_string()) {
    *out = content.get<std::string>();
    return true;
  }
  if (!content.is_array()) return false;
  for (const json& block : content) {
    if (!block.is_object() || block.value("type", json()) != "text" ||
        !block.value("text", json()).is_string()) {
      return false;
    }
    *out += block["text"].get<std::string>();
  }
  return true;
}

// The tool_use blocks of a conversation.
struct Calls {
  std::set<std::string> ids;
  json of_last_turn = json::array();  // to be written; the next message may add more
};

// Called before the next turn begins and at the end.
void WriteCalls(Calls* calls, v1::ChatPrompt* chat) {
  if (calls->of_last_turn.empty()) return;
  chat->mutable_turns(chat->turns_size() - 1)->set_tool_calls(openai::Dump(calls->of_last_turn));
  calls->of_last_turn = json::array();
}

// Appends the blocks of one message to the chat's turns.
class MessageReader {
 public:
  MessageReader(std::string role, std::string place, JsonReader& outer, v1::ChatPrompt* chat,
                Calls* calls)
      : role_(std::move(role)),
        place_(std::move(place)),
        outer_(outer),
        chat_(chat),
        calls_(calls) {}

  void Read(const json& content) {
    if (content.is_string()) {
      Turn()->mutable_content()->append(content.get<std::string>());
      return;
    }
    if (!content.is_array() || content.empty()) {
      Fail("content must be a string or a list of blocks");
      return;
    }
    for (size_t i = 0; i < content.size() && !outer_.error(); ++i) {
      const std::string where = absl::StrCat("content[", i, "]");
      if (!content[i].is_object()) return Fail(where + " must be an object");
      JsonReader block(content[i], absl::StrCat(place_, ".", where, "."));
      ReadBlock(block, where);
      block.Ignore({"cache_control"});  // the prefix cache covers every prompt
      block.RefuseUnknown();
      if (block.error()) outer_.Fail("messages", block.error()->message);
    }
  }

 private:
  void Fail(const std::string& message) {
    outer_.Fail("messages", absl::StrCat(place_, ".", message));
  }

  v1::ChatTurn* Turn() {
    if (turn_ != nullptr) return turn_;
    const int last = chat_->turns_size() - 1;
    if (last >= 0 && role_ != "system" && chat_->turns(last).role() == role_) {
      turn_ = chat_->mutable_turns(last);
      if (!turn_->content().empty()) turn_->mutable_content()->append("\n");
    } else {
      WriteCalls(calls_, chat_);
      turn_ = chat_->add_turns();
      turn_->set_role(role_);
    }
    return turn_;
  }

  void ReadBlock(JsonReader& block, const std::string& where) {
    std::string type;
    block.String("type", true, &type);
    const bool assistant = role_ == "assistant";
    if (type == "text") {
      std::string text;
      block.String("text", true, &text);
      block.Unsupported("citations", IsOff);
      Turn()->mutable_content()->append(text);
    } else if (type == "thinking" && assistant) {
      std::string text;
      block.String("thinking", true, &text);
      block.Ignore({"signature"});  // ours are not signed
      Turn()->mutable_reasoning()->append(text);
    } else if (type == "tool_use" && assistant) {
      ReadCall(block, where);
    } else if (type == "tool_result" && role_ == "user") {
      ReadResult(block, where);
    } else if (!block.error()) {
      Fail(absl::StrCat(where, " is of type '", type.substr(0, 60), "'; of ", role_,
                        " messages known are text",
                        assistant         ? ", thinking and tool_use"
                        : role_ == "user" ? " and tool_result"
                                          : ""));
    }
  }

  void ReadCall(JsonReader& block, const std::string& where) {
    std::string id, name;
    block.String("id", true, &id);
    block.String("name", true, &name);
    const json* input = block.Find("input");
    if (input == nullptr || !input->is_object()) {
      Fail(where + ".input must be an object");
      return;
    }
    for (const char* field : {"caller", "toolset_name"}) block.Unsupported(field, IsOff);
    calls_->ids.insert(id);
    Turn();
    calls_->of_last_turn.push_back(
        {{"id", id},
         {"type", "function"},
         {"function", {{"name", name}, {"arguments", openai::Dump(*input)}}}});
  }

  void ReadResult(JsonReader& block, const std::string& where) {
    std::string id, text;
    block.String("tool_use_id", true, &id);
    if (!block.error() && calls_->ids.count(id) == 0) {
      Fail(absl::StrCat(where, ".tool_use_id is '", id.substr(0, 100),
                        "', which is the id of no tool_use before it"));
      return;
    }
    const json* content = block.Find("content");
    if (content != nullptr && !JoinTexts(*content, &text)) {
      Fail(where + ".content must be a string or a list of blocks of type text");
      return;
    }
    // Chat templates have no marker for errors.
    bool failed = false;
    block.Bool("is_error", &failed);
    if (failed && text.empty()) text = "error";
    block.Unsupported("toolset_name", IsOff);
    turn_ = nullptr;  // later text starts a new turn
    WriteCalls(calls_, chat_);
    v1::ChatTurn* turn = chat_->add_turns();
    turn->set_role("tool");
    turn->set_tool_call_id(id);
    turn->set_content(text);
  }

  const std::string role_, place_;
  JsonReader& outer_;
  v1::ChatPrompt* const chat_;
  Calls* const calls_;
  v1::ChatTurn* turn_ = nullptr;  // receives texts
};

void ReadMessage(const json& value, const std::string& place, JsonReader& outer,
                 v1::ChatPrompt* chat, Calls* calls) {
  if (!value.is_object()) {
    outer.Fail("messages", place + " must be an object");
    return;
  }
  JsonReader message(value, place + ".");
  std::string role;
  message.String("role", true, &role);
  if (!message.error() && role != "user" && role != "assistant" && role != "system") {
    message.Fail("role", place + ".role must be user, assistant or system");
  }
  const json* content = message.Find("content");
  if (content == nullptr) message.Fail("content", place + ".content is missing");
  message.RefuseUnknown();
  if (message.error()) {
    outer.Fail("messages", message.error()->message);
    return;
  }
  MessageReader(role, place, outer, chat, calls).Read(*content);
}

}  // namespace

void ReadSystem(JsonReader& reader, v1::ChatPrompt* chat) {
  const json* system = reader.Find("system");
  if (system == nullptr) return;
  std::string text;
  if (!JoinTexts(*system, &text)) {
    reader.Fail("system", "field 'system' must be a string or a list of blocks of type text");
    return;
  }
  if (text.empty()) return;
  v1::ChatTurn* turn = chat->add_turns();
  turn->set_role("system");
  turn->set_content(text);
}

void ReadMessages(JsonReader& reader, v1::ChatPrompt* chat) {
  const json* messages = reader.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty() ||
      messages->size() > openai::kMaxMessages) {
    reader.Fail("messages", "field 'messages' must be a list of 1 to 4096 messages");
    return;
  }
  Calls calls;
  for (size_t i = 0; i < messages->size() && !reader.error(); ++i) {
    ReadMessage((*messages)[i], absl::StrCat("messages[", i, "]"), reader, chat, &calls);
  }
  if (reader.error()) return;
  if (chat->turns().empty()) {
    reader.Fail("messages", "field 'messages' holds nothing to answer");
    return;
  }
  WriteCalls(&calls, chat);
  const v1::ChatTurn& last = chat->turns(chat->turns_size() - 1);
  if (last.role() != "assistant") return;
  if (!last.tool_calls().empty()) {
    reader.Fail("messages", "a tool_use must be followed by its tool_result");
  }
  chat->set_continue_final_message(true);
}

}  // namespace espalier::anthropic
