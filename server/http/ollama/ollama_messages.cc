#include "server/http/ollama/ollama_messages.h"

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/http/openai_chat.h"

namespace espalier::ollama {
namespace {

using json = nlohmann::ordered_json;
using openai::JsonReader;

// Links the results of a conversation to its calls.
class CallLinker {
 public:
  // Records a call and returns its id.
  std::string Add(std::string id, const std::string& name) {
    // Nine letters and digits, as Mistral's templates demand.
    if (id.empty()) id = absl::StrFormat("call%05d", made_++);
    open_.push_back({id, name});
    return id;
  }
  // Returns the id of the call that a result answers; empty if no call is open.
  std::string Take(const std::string& id, const std::string& name) {
    auto found = std::find_if(open_.begin(), open_.end(), [&](const Call& call) {
      return id.empty() ? call.name == name : call.id == id;
    });
    if (!id.empty()) {
      if (found != open_.end()) open_.erase(found);
      return id;
    }
    if (found == open_.end()) found = open_.begin();
    if (found == open_.end()) return "";
    const std::string taken = found->id;
    open_.erase(found);
    return taken;
  }

 private:
  struct Call {
    std::string id, name;
  };
  std::deque<Call> open_;
  int made_ = 0;
};

// Converts to OpenAI's form, whose arguments may be objects inside the server.
json ReadCalls(const json& calls, const std::string& place, JsonReader& reader,
               CallLinker* linker) {
  json out = json::array();
  const auto wrong = [&] {
    reader.Fail("tool_calls", absl::StrCat(place,
                                           ".tool_calls must be a list of calls, each with a "
                                           "'function' of a 'name' and an object 'arguments'"));
    return json::array();
  };
  if (!calls.is_array()) return wrong();
  for (const json& call : calls) {
    if (!call.is_object() || !call.value("function", json()).is_object()) return wrong();
    const json& function = call["function"];
    const json arguments = function.value("arguments", json());
    const json id = call.value("id", json(""));
    if (!function.value("name", json()).is_string() || !arguments.is_object() || !id.is_string()) {
      return wrong();
    }
    const std::string name = function["name"].get<std::string>();
    out.push_back({{"id", linker->Add(id.get<std::string>(), name)},
                   {"type", "function"},
                   {"function", {{"name", name}, {"arguments", arguments}}}});
  }
  return out;
}

void ReadOllamaMessage(JsonReader& reader, const std::string& place, CallLinker* linker,
                       v1::ChatTurn* turn) {
  reader.String("content", false, turn->mutable_content());
  reader.String("thinking", false, turn->mutable_reasoning());
  if (!turn->reasoning().empty() && turn->role() != "assistant") {
    reader.Fail("thinking", absl::StrCat(place, ".thinking must be the assistant's"));
  }
  if (const json* calls = reader.Find("tool_calls"); calls != nullptr && !calls->empty()) {
    if (turn->role() != "assistant") {
      reader.Fail("tool_calls", absl::StrCat(place, ".tool_calls must be the assistant's"));
    }
    turn->set_tool_calls(openai::Dump(ReadCalls(*calls, place, reader, linker)));
  }
  std::string tool, id;
  reader.String("tool_name", false, &tool);
  reader.String("tool_call_id", false, &id);
  if (turn->role() == "tool") {
    turn->set_name(tool);
    turn->set_tool_call_id(linker->Take(id, tool));
  } else if (!tool.empty() || !id.empty()) {
    reader.Fail("tool_name", absl::StrCat(place, ".tool_name and .tool_call_id must be a tool's"));
  }
  RefuseImages(reader, place + ".");
}

}  // namespace

void RefuseImages(JsonReader& reader, const std::string& place) {
  const json* images = reader.Find("images");
  if (images == nullptr || images->empty()) return;
  reader.Fail("images", absl::StrCat("field '", place,
                                     "images' is not supported: models are served for text only; "
                                     "leave it out"));
}

void ReadMessages(JsonReader& reader, v1::ChatPrompt* chat) {
  const json* messages = reader.Find("messages");
  if (messages == nullptr) return;
  if (!messages->is_array() || messages->size() > openai::kMaxMessages) {
    reader.Fail("messages", absl::StrCat("field 'messages' must be a list of at most ",
                                         openai::kMaxMessages, " messages"));
    return;
  }
  CallLinker linker;
  openai::ReadMessageList(
      *messages, reader,
      [&](JsonReader& message, const std::string& place, v1::ChatTurn* turn) {
        ReadOllamaMessage(message, place, &linker, turn);
      },
      chat);
}

void ReadTools(JsonReader& reader, v1::ChatPrompt* chat) {
  std::vector<std::string> names;
  openai::ReadToolList(reader, [&](const json& tool, const std::string& place) {
    const json function = tool.is_object() ? tool.value("function", json()) : json();
    if (!function.is_object() || tool.value("type", json("function")) != "function") {
      reader.Fail("tools", absl::StrCat(place, " must have the type function and a 'function'"));
      return;
    }
    const json text = {{"type", "function"}, {"function", function}};
    openai::AddFunction(function, openai::Dump(text), place + ".function", reader, &names, chat);
  });
}

}  // namespace espalier::ollama
