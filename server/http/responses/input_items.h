// The items of which inputs and outputs of the Responses API consist, and the chat that they are.
// Pure functions.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "espalier/v1/inference.pb.h"
#include "server/http/json_reader.h"
#include "server/http/openai_error.h"

namespace espalier::openai {

// Names of one response's items: "msg_", "fc_", "rs_" and what belongs to the response.
class ItemIds {
 public:
  explicit ItemIds(std::string base = "") : base_(std::move(base)) {}
  std::string New(const char* prefix);
  // For an item of this type.
  std::string NewFor(const std::string& type);

 private:
  std::string base_;
  int next_ = 0;
};

// Field "input": a text, which is the user's, or a list of messages, calls of functions, their
// outputs, thoughts and references to items. `items` gets them in the form in which they are listed
// later on, with ids where they bring none; an id of their own has at most kMaxItemIdBytes bytes and
// stands for one item alone. Images, files and what belongs to tools that are not
// functions are refused by name.
void ReadInput(JsonReader& reader, ItemIds* ids, nlohmann::ordered_json* items);

inline constexpr size_t kMaxItemIdBytes = 64;

// Of all that one input refers to, as of an HTTP body: a reference is short, what it stands for is
// copied each time.
inline constexpr size_t kMaxReferredBytes = 8 << 20;

// Puts what is referred to in the place of references; `find` gives null for what is not known. An
// error if that is more than kMaxReferredBytes.
using FindItem =
    std::function<std::shared_ptr<const nlohmann::ordered_json>(const std::string& id)>;
std::optional<Error> ResolveReferences(const FindItem& find, nlohmann::ordered_json* items);

// Gives a new id to each item whose id one of `before`, or an item before it, has, be it referred
// to or given again: where a list of items goes on is said by an id.
void MakeIdsUnique(const nlohmann::ordered_json& before, ItemIds* ids, nlohmann::ordered_json* items);

// A whole conversation as turns behind those that `chat` has: thoughts, text and calls that the
// assistant gave one after another are one turn, as templates expect. An error if an output answers
// no call before it.
std::optional<Error> AddTurns(const nlohmann::ordered_json& items, v1::ChatPrompt* chat);

}  // namespace espalier::openai
