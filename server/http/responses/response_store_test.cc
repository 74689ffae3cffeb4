#include "server/http/responses/response_store.h"

#include <malloc.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

using json = nlohmann::ordered_json;

const Caller kAlice{Role::kInfer, "alice"};
const Caller kBob{Role::kInfer, "bob"};
const Caller kAdmin{Role::kAdmin, ""};

StoredResponse Response(const std::string& id, const std::string& owner, size_t bytes = 100) {
  return {.owner = owner,
          .object = {{"id", id},
                     {"output", {{{"id", "msg_out_" + id}, {"text", std::string(bytes, 'x')}}}}},
          .input = {{{"id", "msg_in_" + id}}}};
}

class Running : public InProgressResponse {
 public:
  json Snapshot() override { return {{"status", "in_progress"}}; }
  bool streams() const override { return false; }
  void Watch(std::shared_ptr<HttpResponder>, int64_t) override {}
  void Cancel() override {}
};

TEST(ResponseStoreTest, EvictsTheLeastRecentlyUsed) {
  ResponseStore store(48000);
  for (int i = 0; i < 3; ++i) store.Put(absl::StrCat(i), Response(absl::StrCat(i), "", 12000));
  EXPECT_NE(store.Find("0", kAdmin).ended, nullptr);  // used most recently
  store.Put("3", Response("3", "", 12000));
  EXPECT_EQ(store.Find("1", kAdmin).ended, nullptr);
  for (const char* id : {"0", "2", "3"}) EXPECT_NE(store.Find(id, kAdmin).ended, nullptr) << id;
  // A response larger than the store does not evict the others.
  store.Put("4", Response("4", "", 90000));
  EXPECT_EQ(store.Find("4", kAdmin).ended, nullptr);
  EXPECT_NE(store.Find("0", kAdmin).ended, nullptr);
  // Erasing frees its memory.
  EXPECT_TRUE(store.Erase("0", kAdmin));
  EXPECT_FALSE(store.Erase("0", kAdmin));
  store.Put("5", Response("5", "", 12000));
  for (const char* id : {"2", "3", "5"}) EXPECT_NE(store.Find(id, kAdmin).ended, nullptr) << id;
}

size_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

// The limit bounds real memory; logprobs once took five times their estimate.
TEST(ResponseStoreTest, MemoryStaysWithinTheLimit) {
  {
    const size_t before = HeapBytes();
    const std::string probe(1 << 20, 'x');
    if (HeapBytes() < before + probe.size()) GTEST_SKIP() << "a sanitizer's heap says nothing";
  }
  constexpr size_t kMost = 6 << 20;
  const auto logprobs = [](int i) {
    json all = json::array();
    for (int token = 0; token < 400; ++token) {
      json top = json::array();
      for (int k = 0; k < 20; ++k) {
        top.push_back({{"token", "ab"}, {"logprob", -0.5 * k}, {"bytes", {97, 98}}});
      }
      all.push_back(
          {{"token", "ab"}, {"logprob", -0.5}, {"bytes", {97, 98}}, {"top_logprobs", top}});
    }
    StoredResponse response = Response(absl::StrCat(i), "");
    response.object["output"][0]["logprobs"] = std::move(all);
    return response;
  };
  const auto many_items = [](int i) {
    StoredResponse response = Response(absl::StrCat(i), "an owner whose name is long");
    for (int item = 0; item < 1000; ++item) {
      const std::string id = absl::StrCat(std::string(50, 'i'), i, "-", item);
      response.input.push_back({{"id", id}, {"type", "message"}, {"content", json::array()}});
    }
    return response;
  };
  const auto many_events = [](int i) {
    StoredResponse response = Response(absl::StrCat(i), "");
    response.events.assign(1000, std::string(40, 'e'));
    return response;
  };
  const auto small = [](int i) { return Response(absl::StrCat(i), "", 10); };
  const std::pair<const char*, std::function<StoredResponse(int)>> cases[] = {
      {"logprobs", logprobs}, {"items", many_items}, {"events", many_events}, {"small", small}};
  for (const auto& [name, make] : cases) {
    SCOPED_TRACE(name);
    const size_t before = HeapBytes();
    ResponseStore store(kMost);
    int i = 0;
    do {  // until the first is evicted
      store.Put(absl::StrCat(i), make(i));
    } while (++i < 100'000 && !(i % 10 == 0 && store.Item("msg_in_0", kAdmin) == nullptr));
    const size_t taken = HeapBytes() - before;
    EXPECT_LT(i, 100'000);
    EXPECT_LE(taken, kMost);
    EXPECT_GE(taken, kMost / 3);  // an overestimate would waste the budget
  }
}

TEST(ResponseStoreTest, ResponsesAreVisibleToTheirOwnerOnly) {
  ResponseStore store(5000);
  store.Put("a", Response("a", "alice"));
  EXPECT_EQ(store.Find("a", kBob).ended, nullptr);
  EXPECT_FALSE(store.Erase("a", kBob));
  EXPECT_FALSE(store.Item("msg_in_a", kBob));
  EXPECT_NE(store.Find("a", kAlice).ended, nullptr);
  ASSERT_TRUE(store.Item("msg_in_a", kAlice));
  EXPECT_EQ((*store.Item("msg_out_a", kAlice))["id"], "msg_out_a");
  EXPECT_FALSE(store.Item("msg_none", kAlice));
  // Another key of hers, and an admin's.
  EXPECT_NE(store.Find("a", Caller{Role::kTrain, "alice"}).ended, nullptr);
  EXPECT_NE(store.Find("a", kAdmin).ended, nullptr);
  EXPECT_TRUE(store.Item("msg_in_a", kAdmin));
  // What is nobody's is not for all.
  store.Put("admins", Response("admins", ""));
  EXPECT_EQ(store.Find("admins", kAlice).ended, nullptr);
  EXPECT_FALSE(store.Erase("admins", kAlice));
  EXPECT_TRUE(store.Erase("admins", kAdmin));
  // An item of two responses lives until both are gone.
  StoredResponse next = Response("b", "alice");
  next.input.push_back({{"id", "msg_out_a"}});
  store.Put("b", next);
  EXPECT_TRUE(store.Erase("a", kAlice));
  EXPECT_TRUE(store.Item("msg_out_a", kAlice));
  EXPECT_FALSE(store.Item("msg_in_a", kAlice));
  EXPECT_TRUE(store.Erase("b", kAlice));
  EXPECT_FALSE(store.Item("msg_out_a", kAlice));
}

TEST(ResponseStoreTest, RunningResponseIsFoundAndEraseIsFinal) {
  ResponseStore store(5000);
  store.Start("a", "", std::make_shared<Running>());
  store.Start("b", "", std::make_shared<Running>());
  ASSERT_NE(store.Find("a", kAdmin).running, nullptr);
  EXPECT_EQ(store.Find("a", kAdmin).ended, nullptr);
  // Running responses are never evicted.
  for (int i = 0; i < 9; ++i) store.Put(absl::StrCat(i), Response(absl::StrCat(i), "", 1200));
  store.End("a", Response("a", ""));
  EXPECT_EQ(store.Find("a", kAdmin).running, nullptr);
  EXPECT_NE(store.Find("a", kAdmin).ended, nullptr);
  EXPECT_TRUE(store.Erase("b", kAdmin));
  store.End("b", Response("b", ""));
  EXPECT_EQ(store.Find("b", kAdmin).ended, nullptr);
}

// Otherwise a polling client would wait forever, or get a 404.
TEST(ResponseStoreTest, OversizedResponseDropsEventsThenFails) {
  const auto ended = [](size_t events, size_t tokens, size_t text) {
    ResponseStore store(100'000);
    store.Start("a", "", std::make_shared<Running>());
    StoredResponse response = Response("a", "", 1);
    response.object["status"] = "completed";
    json part = {{"type", "output_text"}, {"text", std::string(text, 'x')}};
    part["logprobs"] = json::array();
    for (size_t i = 0; i < tokens; ++i) part["logprobs"].push_back({{"token", "a"}});
    response.object["output"][0]["content"] = {part};
    response.events.assign(events, std::string(100, 'e'));
    store.End("a", std::move(response));
    return store.Find("a", kAdmin).ended;
  };
  const auto part = [](const auto& response) {
    return response->object["output"][0]["content"][0];
  };
  auto kept = ended(10, 10, 10);
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(kept->events.size(), 10u);
  EXPECT_FALSE(kept->events_dropped);
  kept = ended(1000, 10, 10);
  ASSERT_NE(kept, nullptr);
  EXPECT_TRUE(kept->events.empty());
  EXPECT_TRUE(kept->events_dropped);
  EXPECT_FALSE(kept->conversation_dropped);
  EXPECT_EQ(part(kept)["logprobs"].size(), 10u);
  kept = ended(1000, 2000, 10);
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(kept->object["status"], "completed");
  EXPECT_TRUE(part(kept)["logprobs"].empty());
  EXPECT_EQ(part(kept)["text"], std::string(10, 'x'));
  kept = ended(10, 10, 200'000);
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(kept->object["status"], "failed");
  EXPECT_TRUE(kept->object["output"].empty());
  EXPECT_NE(kept->object["error"]["message"].get<std::string>().find("--response-store-bytes"),
            std::string::npos);
  EXPECT_TRUE(kept->conversation_dropped);
}

TEST(ResponseStoreTest, LargeEchoIsDroppedFromAFailedResponse) {
  ResponseStore store(100'000);
  store.Start("a", "", std::make_shared<Running>());
  StoredResponse response = Response("a", "", 1);
  for (const char* field : {"instructions", "user", "safety_identifier", "prompt_cache_key"}) {
    response.object[field] = std::string(200'000, 'x');
  }
  response.object["tools"] = json::array();
  for (int i = 0; i < 2000; ++i) response.object["tools"].push_back({{"type", "function"}});
  store.End("a", std::move(response));
  const auto kept = store.Find("a", kAdmin).ended;
  ASSERT_NE(kept, nullptr) << "whoever polls for it hears how it ended";
  EXPECT_EQ(kept->object["status"], "failed");
}

}  // namespace
}  // namespace espalier
