#include "server/http/responses/response_store.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

using json = nlohmann::ordered_json;

StoredResponse Response(const std::string& id, const std::string& owner, size_t bytes = 100) {
  return {.owner = owner,
          .object = {{"id", id},
                     {"output", {{{"id", "msg_out_" + id}, {"text", std::string(bytes, 'x')}}}}},
          .input = {{{"id", "msg_in_" + id}}}};
}

class Running : public LiveAnswer {
 public:
  json Snapshot() override { return {{"status", "in_progress"}}; }
  bool streams() const override { return false; }
  void Watch(std::shared_ptr<HttpResponder>, int64_t) override {}
  void Cancel() override {}
};

TEST(ResponseStoreTest, TheOnesUsedLastStay) {
  ResponseStore store(6000);
  for (int i = 0; i < 3; ++i) store.Put(absl::StrCat(i), Response(absl::StrCat(i), "", 1200));
  EXPECT_NE(store.Find("0", "").ended, nullptr);  // used just now
  store.Put("3", Response("3", "", 1200));
  EXPECT_EQ(store.Find("1", "").ended, nullptr);
  for (const char* id : {"0", "2", "3"}) EXPECT_NE(store.Find(id, "").ended, nullptr) << id;
  // One that is larger than all there is does not drive the others out.
  store.Put("4", Response("4", "", 9000));
  EXPECT_EQ(store.Find("4", "").ended, nullptr);
  EXPECT_NE(store.Find("0", "").ended, nullptr);
  // What was deleted makes room.
  EXPECT_TRUE(store.Erase("0", ""));
  EXPECT_FALSE(store.Erase("0", ""));
  store.Put("5", Response("5", "", 1200));
  for (const char* id : {"2", "3", "5"}) EXPECT_NE(store.Find(id, "").ended, nullptr) << id;
}

TEST(ResponseStoreTest, NobodyFindsWhatAnotherOneOwns) {
  ResponseStore store(5000);
  store.Put("a", Response("a", "Bearer one"));
  EXPECT_EQ(store.Find("a", "Bearer two").ended, nullptr);
  EXPECT_FALSE(store.Erase("a", "Bearer two"));
  EXPECT_FALSE(store.Item("msg_in_a", "Bearer two"));
  EXPECT_NE(store.Find("a", "Bearer one").ended, nullptr);
  ASSERT_TRUE(store.Item("msg_in_a", "Bearer one"));
  EXPECT_EQ((*store.Item("msg_out_a", "Bearer one"))["id"], "msg_out_a");
  EXPECT_FALSE(store.Item("msg_none", "Bearer one"));
  // An item of two responses is there until both are gone.
  StoredResponse next = Response("b", "Bearer one");
  next.input.push_back({{"id", "msg_out_a"}});
  store.Put("b", next);
  EXPECT_TRUE(store.Erase("a", "Bearer one"));
  EXPECT_TRUE(store.Item("msg_out_a", "Bearer one"));
  EXPECT_FALSE(store.Item("msg_in_a", "Bearer one"));
  EXPECT_TRUE(store.Erase("b", "Bearer one"));
  EXPECT_FALSE(store.Item("msg_out_a", "Bearer one"));
}

TEST(ResponseStoreTest, WhatRunsIsFoundUntilItEndsAndStaysErased) {
  ResponseStore store(5000);
  store.Start("a", "", std::make_shared<Running>());
  store.Start("b", "", std::make_shared<Running>());
  ASSERT_NE(store.Find("a", "").running, nullptr);
  EXPECT_EQ(store.Find("a", "").ended, nullptr);
  // However much ends meanwhile.
  for (int i = 0; i < 9; ++i) store.Put(absl::StrCat(i), Response(absl::StrCat(i), "", 1200));
  store.End("a", Response("a", ""));
  EXPECT_EQ(store.Find("a", "").running, nullptr);
  EXPECT_NE(store.Find("a", "").ended, nullptr);
  EXPECT_TRUE(store.Erase("b", ""));
  store.End("b", Response("b", ""));
  EXPECT_EQ(store.Find("b", "").ended, nullptr);
}

}  // namespace
}  // namespace espalier
