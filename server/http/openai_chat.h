// What only chats have: messages, tools, thoughts.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/http/json_reader.h"
#include "server/http/openai_request.h"

namespace espalier::openai {

inline constexpr size_t kMaxMessages = 4096;
inline constexpr size_t kMaxTools = 128;

void ReadMessages(JsonReader& reader, v1::ChatPrompt* chat);

// tools, tool_choice and parallel_tool_calls.
void ReadTools(JsonReader& reader, v1::ChatPrompt* chat);

// Field "tools": calls `read` with each of them and its place, until there is an error.
void ReadToolList(
    JsonReader& reader,
    const std::function<void(const nlohmann::ordered_json& tool, const std::string& place)>& read);

// One function that may be called, an object with a name, a description, parameters and strict, as
// `text`, the API's own form of it, shows it to templates. False, and `outer` has the error under
// "tools", if it is none.
bool AddFunction(const nlohmann::ordered_json& function, const std::string& text,
                 const std::string& place, JsonReader& outer, std::vector<std::string>* names,
                 v1::ChatPrompt* chat);

// The function that an object of the API names, if it names one.
using FunctionName = std::function<std::optional<std::string>(const nlohmann::ordered_json&)>;
// tool_choice; `names` are those of chat->tools, of which only allowed ones stay.
void ReadToolChoice(JsonReader& reader, const std::vector<std::string>& names,
                    const FunctionName& name_of, v1::ChatPrompt* chat);

void ReadEffort(JsonReader& reader, const std::string& field, v1::ChatPrompt* chat);
void ReadTemplateArguments(JsonReader& reader, v1::ChatPrompt* chat);

// reasoning_effort, include_reasoning and thinking_token_budget (vLLM's), and reasoning_format
// (llama.cpp's).
void ReadReasoning(JsonReader& reader, Request* request);

}  // namespace espalier::openai
