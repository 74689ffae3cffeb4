#include "server/http/responses/input_items.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json/bounded_json.h"
#include "server/http/openai_chat.h"

namespace espalier::openai {
namespace {

using json = nlohmann::ordered_json;

bool IsStatus(const json& v) { return v == "completed" || v == "incomplete" || v == "in_progress"; }

// Returns the content type of a role's text parts.
const char* TextType(const std::string& role) {
  return role == "assistant" ? "output_text" : "input_text";
}

// Converts a string or a list of texts to parts. `place` ends without a dot.
json ReadParts(const json& content, const std::string& role, const std::string& place,
               JsonReader& outer) {
  json parts = json::array();
  const auto add = [&](const std::string& text) {
    json part = {{"type", TextType(role)}, {"text", text}};
    if (role == "assistant") part["annotations"] = json::array();
    parts.push_back(std::move(part));
  };
  if (content.is_string()) {
    add(content.get<std::string>());
    return parts;
  }
  if (!content.is_array()) {
    outer.Fail("input", absl::StrCat(place, " must be a string or a list of texts"));
    return parts;
  }
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string where = absl::StrCat(place, "[", i, "]");
    const json& part = content[i];
    const json type = part.is_object() ? part.value("type", json()) : json();
    // Answers of other servers may contain refusals, which count as text.
    const char* field = type == "refusal" ? "refusal" : "text";
    const bool text =
        type == "input_text" || type == "output_text" || type == "text" || type == "refusal";
    if (type.is_string() && !text) {
      outer.Fail("input",
                 absl::StrCat(where, " is of type '", type.get<std::string>().substr(0, 60),
                              "'; the models here read input_text and output_text"));
      return parts;
    }
    if (!text || !part.value(field, json()).is_string()) {
      outer.Fail("input", absl::StrCat(where, " must have a type and a string '", field, "'"));
      return parts;
    }
    add(part[field].get<std::string>());
  }
  return parts;
}

// Joins the texts of a list of parts. Returns false if it is none.
bool JoinTexts(const json& parts, std::string* out) {
  if (!parts.is_array()) return false;
  for (const json& part : parts) {
    if (!part.is_object() || !part.value("text", json()).is_string()) return false;
    *out += part["text"].get<std::string>();
  }
  return true;
}

class ItemReader {
 public:
  ItemReader(const json& item, std::string place, ItemIds* ids)
      : reader_(item, place + "."), place_(std::move(place)), ids_(ids) {}

  json Read() {
    std::string type;
    reader_.String("type", false, &type);
    if (type.empty()) type = "message";  // messages may omit it
    if (type == "message") return Message();
    if (type == "function_call") return Call();
    if (type == "function_call_output") return Output();
    if (type == "reasoning") return Reasoning();
    if (type == "item_reference") return Reference();
    Fail("type", absl::StrCat(place_, " is of type '", type.substr(0, 60),
                              "'; known are message, function_call, function_call_output, "
                              "reasoning and item_reference"));
    return json();
  }

  std::optional<Error> Done() {
    reader_.RefuseUnknown();
    return reader_.error();
  }

 private:
  void Fail(const std::string& field, const std::string& message) { reader_.Fail(field, message); }

  json Begin(const char* type) {
    std::string id;
    reader_.String("id", false, &id);
    if (id.size() > kMaxItemIdBytes) {
      Fail("id", absl::StrCat(place_, ".id has more than ", kMaxItemIdBytes,
                              " bytes; leave it out, and it gets one"));
    }
    json item = {{"id", id.empty() ? ids_->NewFor(type) : id}, {"type", type}};
    const json* status = reader_.Find("status");
    if (status != nullptr && !IsStatus(*status)) {
      Fail("status", absl::StrCat(place_, ".status must be in_progress, completed or incomplete"));
    }
    item["status"] = status == nullptr ? json("completed") : *status;
    return item;
  }

  json Message() {
    json item = Begin("message");
    std::string role;
    reader_.String("role", true, &role);
    if (!reader_.error() && role != "user" && role != "assistant" && role != "system" &&
        role != "developer") {
      Fail("role", absl::StrCat(place_, ".role must be user, assistant, system or developer"));
    }
    item["role"] = role;
    const json* content = reader_.Find("content");
    if (content == nullptr) {
      Fail("content", absl::StrCat(place_, ".content is missing"));
      return item;
    }
    item["content"] = ReadParts(*content, role, place_ + ".content", reader_);
    reader_.Ignore({"phase"});
    return item;
  }

  json Call() {
    json item = Begin("function_call");
    std::string call, name, arguments;
    reader_.String("call_id", true, &call);
    reader_.String("name", true, &name);
    reader_.String("arguments", true, &arguments);
    // Templates expect parsed arguments; they may be empty.
    const absl::StatusOr<json> parsed =
        ParseBoundedJson<json>(arguments.empty() ? "{}" : arguments, kRequestJson);
    if (!reader_.error() && !(parsed.ok() && parsed->is_object())) {
      Fail("arguments", absl::StrCat(place_, ".arguments must be a JSON object as a string"));
    }
    item["call_id"] = call;
    item["name"] = name;
    item["arguments"] = arguments;
    reader_.Ignore({"parsed_arguments"});  // added by OpenAI's client
    for (const char* name : {"async", "caller", "namespace"}) reader_.Unsupported(name, IsOff);
    return item;
  }

  json Output() {
    json item = Begin("function_call_output");
    std::string call;
    reader_.String("call_id", true, &call);
    item["call_id"] = call;
    const json* output = reader_.Find("output");
    if (output != nullptr && output->is_array()) {
      item["output"] = ReadParts(*output, "user", place_ + ".output", reader_);
    } else if (output != nullptr && output->is_string()) {
      item["output"] = *output;
    } else {
      Fail("output", absl::StrCat(place_, ".output must be a string or a list of texts"));
    }
    reader_.Ignore({"name"});  // the call has it
    for (const char* name : {"caller", "namespace"}) reader_.Unsupported(name, IsOff);
    return item;
  }

  json Reasoning() {
    json item = Begin("reasoning");
    for (const char* field : {"summary", "content"}) {
      const json* parts = reader_.Find(field);
      std::string text;
      if (parts != nullptr && !JoinTexts(*parts, &text)) {
        Fail(field, absl::StrCat(place_, ".", field, " must be a list of parts with a text"));
      }
      item[field] = json::array();
      if (text.empty()) continue;
      item[field].push_back(
          {{"type", *field == 's' ? "summary_text" : "reasoning_text"}, {"text", text}});
    }
    // From other servers; cannot be decrypted here.
    reader_.Unsupported("encrypted_content", IsOff);
    return item;
  }

  json Reference() {
    std::string id;
    reader_.String("id", true, &id);
    return {{"type", "item_reference"}, {"id", id}};
  }

  JsonReader reader_;
  const std::string place_;
  ItemIds* const ids_;
};

// Merges consecutive assistant items into one turn.
class TurnWriter {
 public:
  explicit TurnWriter(v1::ChatPrompt* chat) : chat_(chat) {}

  std::optional<Error> Add(const json& item) {
    const std::string type = item["type"];
    if (type == "message") {
      Message(item);
    } else if (type == "reasoning") {
      // Prefers the reasoning text to its summary.
      std::string text;
      JoinTexts(item["content"].empty() ? item["summary"] : item["content"], &text);
      Open(HasOnlyReasoning())->mutable_reasoning()->append(text);
    } else if (type == "function_call") {
      known_.insert(item["call_id"].get<std::string>());
      Open(true);
      calls_.push_back({{"id", item["call_id"]},
                        {"type", "function"},
                        {"function", {{"name", item["name"]}, {"arguments", item["arguments"]}}}});
    } else {
      const std::string call = item["call_id"];
      if (known_.count(call) == 0) {
        return Error{.message = absl::StrCat("no function_call before its output has the call_id '",
                                             call.substr(0, 100), "'"),
                     .param = "input"};
      }
      Close();
      v1::ChatTurn* turn = chat_->add_turns();
      turn->set_role("tool");
      turn->set_tool_call_id(call);
      if (item["output"].is_string()) {
        turn->set_content(item["output"].get<std::string>());
      } else {
        JoinTexts(item["output"], turn->mutable_content());
      }
    }
    return std::nullopt;
  }

  void Close() {
    if (open_ != nullptr && !calls_.empty()) open_->set_tool_calls(Dump(calls_));
    open_ = nullptr;
    calls_ = json::array();
  }

 private:
  bool HasOnlyReasoning() const {
    return open_ != nullptr && open_->content().empty() && calls_.empty();
  }

  // Returns the assistant's turn: the open one if `goes_on`.
  v1::ChatTurn* Open(bool goes_on) {
    if (!goes_on) Close();
    if (open_ == nullptr) {
      open_ = chat_->add_turns();
      open_->set_role("assistant");
    }
    return open_;
  }

  void Message(const json& item) {
    const std::string role = item["role"];
    v1::ChatTurn* turn = nullptr;
    if (role == "assistant") {
      turn = Open(HasOnlyReasoning());
    } else {
      Close();
      turn = chat_->add_turns();
      turn->set_role(role);
    }
    JoinTexts(item["content"], turn->mutable_content());
  }

  v1::ChatPrompt* const chat_;
  v1::ChatTurn* open_ = nullptr;  // owned by chat_; its turns have stable addresses
  json calls_ = json::array();
  std::set<std::string> known_;
};

}  // namespace

std::string ItemIds::New(const char* prefix) {
  return absl::StrCat(prefix, base_, absl::Hex(next_++, absl::kZeroPad4));
}

std::string ItemIds::NewFor(const std::string& type) {
  return New(type == "function_call"          ? "fc_"
             : type == "function_call_output" ? "fco_"
             : type == "reasoning"            ? "rs_"
                                              : "msg_");
}

void ReadInput(JsonReader& reader, ItemIds* ids, json* items) {
  *items = json::array();
  const json* input = reader.Find("input");
  if (input != nullptr && input->is_string()) {
    const json message = {{"role", "user"}, {"content", *input}};
    items->push_back(ItemReader(message, "input", ids).Read());
    return;
  }
  if (input == nullptr || !input->is_array() || input->size() > kMaxMessages) {
    reader.Fail("input", "field 'input' must be a string or a list of at most 4096 items");
    return;
  }
  std::set<std::string> given;
  for (size_t i = 0; i < input->size(); ++i) {
    const std::string place = absl::StrCat("input[", i, "]");
    if (!(*input)[i].is_object()) {
      reader.Fail("input", absl::StrCat(place, " must be an object"));
      return;
    }
    ItemReader item((*input)[i], place, ids);
    items->push_back(item.Read());
    if (const auto error = item.Done()) {
      reader.Fail("input", error->message);
      return;
    }
    const json& id = items->back()["id"];
    if (items->back()["type"] == "item_reference" || (*input)[i].value("id", json()) != id)
      continue;
    if (!given.insert(id.get<std::string>()).second) {
      reader.Fail("input", absl::StrCat(place, " has the id '", id.get<std::string>(),
                                        "' of an item before it; leave it out, and it gets one"));
      return;
    }
  }
}

std::optional<Error> ResolveReferences(const FindItem& find, json* items) {
  size_t bytes = 0;
  for (size_t i = 0; i < items->size(); ++i) {
    json& item = (*items)[i];
    if (item["type"] != "item_reference") continue;
    const std::string id = item["id"];
    const std::shared_ptr<const json> found = find(id);
    if (found == nullptr) {
      return Error{.http_status = 404,
                   .message = absl::StrCat("there is no item '", id.substr(0, 100),
                                           "' in the responses that are kept; give it whole"),
                   .param = "input"};
    }
    bytes += BytesOf(*found);
    if (bytes > kMaxReferencedBytes) {
      return Error{.message = absl::StrCat("input[", i,
                                           "]: what the references up to this one "
                                           "stand for has more than ",
                                           kMaxReferencedBytes,
                                           " bytes together, which is the limit; refer to less"),
                   .param = "input"};
    }
    item = *found;
  }
  return std::nullopt;
}

void MakeIdsUnique(const json& before, ItemIds* ids, json* items) {
  std::set<std::string> taken;
  for (const json& item : before) taken.insert(item["id"].get<std::string>());
  for (json& item : *items) {
    if (taken.insert(item["id"].get<std::string>()).second) continue;
    item["id"] = ids->NewFor(item["type"]);
    taken.insert(item["id"].get<std::string>());
  }
}

std::optional<Error> AddTurns(const json& items, v1::ChatPrompt* chat) {
  TurnWriter writer(chat);
  for (const json& item : items) {
    if (auto error = writer.Add(item)) return error;
  }
  writer.Close();
  return std::nullopt;
}

}  // namespace espalier::openai
