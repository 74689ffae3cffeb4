// Items become the turns that templates expect, and listed items can be sent back.
#include "server/http/responses/input_items.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier::openai {
namespace {

using json = nlohmann::ordered_json;
using ::testing::HasSubstr;

struct Read {
  json items;
  std::optional<Error> error;
};

Read ReadItems(const json& input) {
  const json body = {{"input", input}};
  JsonReader reader(body);
  ItemIds ids("test");
  Read read;
  ReadInput(reader, &ids, &read.items);
  read.error = reader.error();
  return read;
}

const json& Conversation() {
  static const json& conversation = *new json(json::parse(R"([
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "input_text", "text": "Rain in "},
                                 {"type": "input_text", "text": "Ur?"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [],
     "content": [{"type": "reasoning_text", "text": "ask"}], "encrypted_content": null},
    {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
     "content": [{"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}]},
    {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "rain",
     "arguments": "{\"city\": \"Ur\"}", "status": "completed", "parsed_arguments": null},
    {"type": "function_call", "call_id": "b", "name": "wind", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "b", "output": "calm"},
    {"type": "function_call_output", "call_id": "a",
     "output": [{"type": "input_text", "text": "none"}]},
    {"role": "assistant", "content": "No."},
    {"role": "assistant", "content": "Really."},
    {"role": "user", "content": "Thanks"}])"));
  return conversation;
}

TEST(InputItemsTest, ConsecutiveAssistantItemsAreOneTurn) {
  const Read read = ReadItems(Conversation());
  ASSERT_FALSE(read.error) << read.error->message;
  v1::ChatPrompt chat;
  ASSERT_FALSE(AddTurns(read.items, &chat));
  ASSERT_EQ(chat.turns_size(), 8);
  EXPECT_EQ(chat.turns(0).role(), "developer");
  EXPECT_EQ(chat.turns(1).content(), "Rain in Ur?");
  const v1::ChatTurn& turn = chat.turns(2);
  EXPECT_EQ(turn.role(), "assistant");
  EXPECT_EQ(turn.reasoning(), "ask");
  EXPECT_EQ(turn.content(), "Let me see.");
  const json calls = json::parse(turn.tool_calls());
  ASSERT_EQ(calls.size(), 2);
  EXPECT_EQ(calls[0]["id"], "a");
  EXPECT_EQ(calls[0]["function"]["arguments"], R"({"city": "Ur"})");
  EXPECT_EQ(calls[1]["function"]["name"], "wind");
  EXPECT_EQ(chat.turns(3).role(), "tool");
  EXPECT_EQ(chat.turns(3).tool_call_id(), "b");
  EXPECT_EQ(chat.turns(4).content(), "none");
  // Two messages are two turns, without the earlier calls.
  EXPECT_EQ(chat.turns(5).content(), "No.");
  EXPECT_EQ(chat.turns(5).tool_calls(), "");
  EXPECT_EQ(chat.turns(6).content(), "Really.");
  EXPECT_EQ(chat.turns(7).content(), "Thanks");
}

TEST(InputItemsTest, ListedItemsRoundTrip) {
  const Read first = ReadItems(Conversation());
  const Read again = ReadItems(first.items);
  ASSERT_FALSE(again.error) << again.error->message;
  EXPECT_EQ(again.items, first.items);
  for (const json& item : first.items) EXPECT_FALSE(item["id"].get<std::string>().empty());
  EXPECT_EQ(first.items[2]["id"], "rs_1");
  const Read text = ReadItems("Hello");
  ASSERT_EQ(text.items.size(), 1);
  EXPECT_EQ(text.items[0]["role"], "user");
  EXPECT_EQ(text.items[0]["content"][0]["text"], "Hello");
  EXPECT_EQ(text.items[0]["content"][0]["type"], "input_text");
}

TEST(InputItemsTest, ReferencesAreResolved) {
  json items = ReadItems(json::parse(R"([{"type": "item_reference", "id": "msg_9"},
                                         {"role": "user", "content": "And?"}])"))
                   .items;
  const json known = {{"id", "msg_9"},
                      {"type", "message"},
                      {"role", "user"},
                      {"content", {{{"type", "input_text"}, {"text", "Hm"}}}}};
  json other = items;
  const auto find = [&](const std::string& id) -> std::shared_ptr<const json> {
    if (id == "msg_9") return std::make_shared<json>(known);
    return nullptr;
  };
  ASSERT_FALSE(ResolveReferences(find, &items));
  EXPECT_EQ(items[0], known);
  other[0]["id"] = "msg_8";
  const auto error = ResolveReferences(find, &other);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->http_status, 404);
  EXPECT_THAT(error->message, HasSubstr("msg_8"));
}

// Regression: some ten thousand bytes of references expanded to 28 GB.
TEST(InputItemsTest, ManyReferencesToALargeItemAreRejectedBeforeCopying) {
  const auto large = std::make_shared<const json>(
      json{{"id", "msg_9"},
           {"type", "message"},
           {"role", "user"},
           {"content", {{{"type", "input_text"}, {"text", std::string(5 << 20, 'x')}}}}});
  const auto find = [&](const std::string&) { return large; };
  const json reference = {{"type", "item_reference"}, {"id", "msg_9"}};
  json items(json::array_t(4000, reference));
  const auto error = ResolveReferences(find, &items);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->http_status, 400);
  EXPECT_EQ(error->param, "input");
  EXPECT_THAT(error->message, HasSubstr("input[1]"));
  EXPECT_THAT(error->message, HasSubstr("8388608 bytes"));
  EXPECT_EQ(items[1], reference);
  json one = json::array({reference});
  EXPECT_FALSE(ResolveReferences(find, &one));
  EXPECT_EQ(one[0], *large);
}

// Pages are addressed by item ID: with duplicate IDs, paging never ended.
TEST(InputItemsTest, EveryItemOfAConversationHasAnIdOfItsOwn) {
  const json message = {{"id", "msg_1"},
                        {"type", "message"},
                        {"role", "assistant"},
                        {"content", {{{"type", "output_text"}, {"text", "Hm"}}}}};
  json call = {{"id", "fc_1"}, {"type", "function_call"}};
  const json before = json::array({message});
  // Referenced twice, given again, and new.
  json items = json::array({message, message, message, call, call});
  items.push_back({{"id", "msg_2"}, {"type", "message"}});
  ItemIds ids("test");
  MakeIdsUnique(before, &ids, &items);
  std::set<std::string> seen = {"msg_1"};
  for (const json& item : items) {
    EXPECT_TRUE(seen.insert(item["id"].get<std::string>()).second) << item;
    EXPECT_EQ(item["id"].get<std::string>().substr(0, 3),
              item["type"] == "message" ? "msg" : "fc_");
  }
  EXPECT_EQ(items[3]["id"], "fc_1");  // unchanged where possible
  EXPECT_EQ(items[5]["id"], "msg_2");
  for (json& item : items) item.erase("id");
  json same = message;
  same.erase("id");
  EXPECT_EQ(items[2], same);  // nothing else changed
}

TEST(InputItemsTest, OneInputGivesAnIdToOneItemOnly) {
  const Read twice = ReadItems(json::parse(
      R"([{"role": "user", "id": "a", "content": "x"}, {"role": "user", "content": "y"},
          {"role": "user", "id": "a", "content": "z"}])"));
  ASSERT_TRUE(twice.error);
  EXPECT_THAT(twice.error->message, HasSubstr("input[2] has the id 'a'"));
  for (const char* input : {R"([{"role": "user", "id": "", "content": "x"},
                                {"role": "user", "id": "", "content": "y"}])",
                            R"([{"type": "item_reference", "id": "a"},
                                {"type": "item_reference", "id": "a"}])"}) {
    const Read read = ReadItems(json::parse(input));
    EXPECT_FALSE(read.error) << read.error->message;
  }
  const auto with_id = [](size_t length) {
    return ReadItems({{{"role", "user"}, {"id", std::string(length, 'i')}, {"content", "x"}}});
  };
  EXPECT_FALSE(with_id(kMaxItemIdBytes).error);
  const Read long_id = with_id(kMaxItemIdBytes + 1);
  ASSERT_TRUE(long_id.error);
  EXPECT_THAT(long_id.error->message, HasSubstr("input[0].id has more than 64 bytes"));
}

TEST(InputItemsTest, AnOutputNeedsItsCall) {
  const Read read = ReadItems(json::parse(
      R"([{"type": "function_call_output", "call_id": "a", "output": "x"},
          {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}])"));
  ASSERT_FALSE(read.error);
  v1::ChatPrompt chat;
  const auto error = AddTurns(read.items, &chat);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->param, "input");
  EXPECT_THAT(error->message, HasSubstr("'a'"));
}

TEST(InputItemsTest, InvalidItemsAreRejectedByPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"null", "input"},
      {"7", "input"},
      {"[\"x\"]", "input[0]"},
      {R"([{"role": "user"}])", "input[0].content"},
      {R"([{"role": "king", "content": "x"}])", "input[0].role"},
      {R"([{"role": "user", "content": 7}])", "input[0].content"},
      {R"([{"role": "user", "content": "x", "contents": "y"}])", "input[0].contents"},
      {R"([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}])",
       "input[0].content[0] is of type 'input_image'"},
      {R"([{"role": "user", "content": [{"type": "input_text"}]}])", "input[0].content[0]"},
      {R"([{"type": "web_search_call", "id": "x"}])", "input[0] is of type 'web_search_call'"},
      {R"([{"type": "function_call", "call_id": "a", "name": "f", "arguments": "[1]"}])",
       "input[0].arguments"},
      {R"([{"type": "function_call", "name": "f", "arguments": "{}"}])", "input[0].call_id"},
      {R"([{"type": "function_call_output", "call_id": "a"}])", "input[0].output"},
      {R"([{"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "gAAA"}])",
       "input[0].encrypted_content"},
      {R"([{"type": "reasoning", "id": "r", "summary": "why"}])", "input[0].summary"},
      {R"([{"type": "item_reference"}])", "input[0].id"}};
  for (const auto& [input, place] : cases) {
    const Read read = ReadItems(json::parse(input));
    ASSERT_TRUE(read.error) << input;
    EXPECT_THAT(read.error->message, HasSubstr(place)) << input;
    EXPECT_EQ(read.error->param, "input") << input;
  }
}

}  // namespace
}  // namespace espalier::openai
