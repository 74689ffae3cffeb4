#include "base/net/api_keys.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr char kOne[] = "the-first-of-the-keys";
constexpr char kTwo[] = "the-second-of-the-keys";

std::string FileOf(const std::string& content) {
  const std::string path = ::testing::TempDir() + "/keys";
  std::ofstream(path) << content;
  std::filesystem::permissions(path, std::filesystem::perms(0600));
  return path;
}

TEST(ApiKeys, EveryLineIsAKeyAndTheFirstIsSent) {
  const auto keys = ApiKeys::Read(FileOf(absl::StrCat("# ours\n\n  ", kOne, " \n", kTwo, "\n")));
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->shown()(), kOne);
  for (const char* key : {kOne, kTwo}) {
    EXPECT_TRUE(keys->Identify(absl::StrCat("Bearer ", key)).ok());
    EXPECT_TRUE(keys->Identify(absl::StrCat("bearer  ", key, " ")).ok());
  }
  const std::string wrong[] = {"",
                               kOne,
                               "Bearer ",
                               "Basic x",
                               absl::StrCat("Bearer ", kOne, kTwo),
                               absl::StrCat("Bearer ", std::string(kOne).substr(1)),
                               "Bearer # ours"};
  for (const std::string& header : wrong) {
    EXPECT_EQ(keys->Identify(header).status().code(), absl::StatusCode::kUnauthenticated) << header;
  }
}

TEST(ApiKeys, FilesWithoutAValidKeyAreRefused) {
  EXPECT_THAT(std::string(ApiKeys::Read("/nonexistent/keys").status().message()),
              HasSubstr("cannot be read"));
  EXPECT_THAT(std::string(ApiKeys::Read(FileOf("# none\n")).status().message()),
              HasSubstr("holds no key"));
  EXPECT_THAT(std::string(ApiKeys::Read(FileOf("\nshort\n")).status().message()),
              HasSubstr("line 2"));
}

TEST(ApiKeys, FilesThatOthersCanReadAreRefused) {
  const std::string path = FileOf(kOne);
  std::filesystem::permissions(path, std::filesystem::perms(0644));
  EXPECT_THAT(std::string(ApiKeys::Read(path).status().message()), HasSubstr("chmod 600"));
}

Caller HolderOf(const std::string& line) {
  const auto keys = ApiKeys::Read(FileOf(line));
  EXPECT_TRUE(keys.ok()) << keys.status();
  auto caller = keys->Identify(absl::StrCat("Bearer ", kOne));
  EXPECT_TRUE(caller.ok()) << caller.status();
  return caller.value_or(Caller());
}

TEST(ApiKeys, AKeyHasRolesAndAnOwner) {
  EXPECT_EQ(HolderOf(kOne).roles, Roles(Role::kAdmin));
  EXPECT_EQ(HolderOf(kOne).owner, "");
  const Caller named = HolderOf(absl::StrCat(kOne, "  role=train,infer\towner=alice@lab"));
  EXPECT_EQ(named.roles, Role::kTrain | Role::kInfer);
  EXPECT_EQ(named.owner, "alice@lab");
  EXPECT_EQ(named.max_priority, 0);
  EXPECT_EQ(HolderOf(absl::StrCat(kOne, " role=train max-priority=50")).max_priority, 50);
  // Without a name, keys are apart all the same, and their holders stay the same after a restart.
  const Caller unnamed = HolderOf(absl::StrCat(kOne, " role=infer\n", kTwo, " role=infer"));
  EXPECT_EQ(unnamed.owner.size(), 16);
  EXPECT_EQ(unnamed.owner, HolderOf(absl::StrCat(kOne, " role=train")).owner);
  const auto keys = ApiKeys::Read(FileOf(absl::StrCat(kOne, " role=infer\n", kTwo, " role=infer")));
  ASSERT_TRUE(keys.ok());
  EXPECT_NE(keys->Identify(absl::StrCat("Bearer ", kTwo))->owner, unnamed.owner);
}

TEST(ApiKeys, LinesThatCannotBeMeantAreRefused) {
  const std::pair<std::string, const char*> lines[] = {
      {" role=trainer", "'trainer' is no role"},
      {" role=", "'' is no role"},
      {" role=infer,monitor", "monitor, which sees"},
      {" role=worker,train", "worker, which sees"},
      {" owner=", "an owner has 1 to 64"},
      {" owner=a/b", "an owner has 1 to 64"},
      {" max-priority=", "a number from 0 to 1000"},
      {" max-priority=-1", "a number from 0 to 1000"},
      {" max-priority=1001", "a number from 0 to 1000"},
      {" admin", "role=ROLE"},
      {absl::StrCat("\n", kOne), "line 2"},
      {absl::StrCat("\n", kTwo, " x"), "line 2"}};
  for (const auto& [rest, message] : lines) {
    const auto keys = ApiKeys::Read(FileOf(kOne + rest));
    EXPECT_EQ(keys.status().code(), absl::StatusCode::kInvalidArgument) << rest;
    EXPECT_THAT(std::string(keys.status().message()), HasSubstr(message)) << rest;
  }
}

TEST(ApiKeys, WorkersJoinWithAKeyThatMay) {
  const auto keys =
      ApiKeys::Read(FileOf(absl::StrCat(kOne, " role=infer\n", kTwo, " role=worker")));
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_TRUE(keys->MayJoin());
  EXPECT_EQ(keys->shown()(), kTwo);
  const auto none = ApiKeys::Read(FileOf(absl::StrCat(kOne, " role=infer")));
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->MayJoin());
}

TEST(ApiKeys, AWorkersKeyMayBeExchangedForAnother) {
  const auto keys = ApiKeys::Read(FileOf(absl::StrCat(
      kOne, " role=worker\n", kTwo, " role=worker\n", kOne, "-3 role=worker owner=rack-7")));
  ASSERT_TRUE(keys.ok()) << keys.status();
  const std::string before = keys->Identify(absl::StrCat("Bearer ", kOne))->owner;
  EXPECT_FALSE(before.empty());
  EXPECT_EQ(keys->Identify(absl::StrCat("Bearer ", kTwo))->owner, before);
  EXPECT_EQ(keys->Identify(absl::StrCat("Bearer ", kOne, "-3"))->owner, "rack-7");
}

TEST(Caller, OwnersAreApart) {
  const Caller alice{Role::kTrain, "alice"}, admin{Role::kAdmin, ""}, worker{Role::kWorker, "w"};
  EXPECT_TRUE(alice.MayUse("alice") && alice.MayChange("alice"));
  EXPECT_TRUE(alice.MayUse("") && !alice.MayChange(""));
  EXPECT_FALSE(alice.MayUse("bob") || alice.MayChange("bob"));
  EXPECT_TRUE(admin.MayUse("bob") && admin.MayChange("bob") && admin.MayChange(""));
  EXPECT_TRUE(worker.MayUse("bob") && !worker.MayChange("bob"));
}

TEST(ApiKeys, CopiesSeeReloadedKeys) {
  auto keys = ApiKeys::Read(FileOf(kOne));
  ASSERT_TRUE(keys.ok()) << keys.status();
  const ApiKeys copy = *keys;
  EXPECT_FALSE(*keys->Reload());
  FileOf(absl::StrCat(kTwo, "\n", kOne));
  EXPECT_TRUE(*keys->Reload());
  EXPECT_EQ(copy.shown()(), kTwo);
  EXPECT_TRUE(copy.Identify(absl::StrCat("Bearer ", kOne)).ok());
  FileOf("");
  EXPECT_EQ(keys->Reload().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(copy.Identify(absl::StrCat("Bearer ", kTwo)).ok());
}

}  // namespace
}  // namespace espalier
