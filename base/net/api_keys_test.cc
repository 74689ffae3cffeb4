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
    EXPECT_TRUE(keys->Check(absl::StrCat("Bearer ", key)).ok());
    EXPECT_TRUE(keys->Check(absl::StrCat("bearer  ", key, " ")).ok());
  }
  const std::string wrong[] = {"",
                               kOne,
                               "Bearer ",
                               "Basic x",
                               absl::StrCat("Bearer ", kOne, kTwo),
                               absl::StrCat("Bearer ", std::string(kOne).substr(1)),
                               "Bearer # ours"};
  for (const std::string& header : wrong) {
    EXPECT_EQ(keys->Check(header).code(), absl::StatusCode::kUnauthenticated) << header;
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

TEST(ApiKeys, CopiesSeeReloadedKeys) {
  auto keys = ApiKeys::Read(FileOf(kOne));
  ASSERT_TRUE(keys.ok()) << keys.status();
  const ApiKeys copy = *keys;
  EXPECT_FALSE(*keys->Reload());
  FileOf(absl::StrCat(kTwo, "\n", kOne));
  EXPECT_TRUE(*keys->Reload());
  EXPECT_EQ(copy.shown()(), kTwo);
  EXPECT_TRUE(copy.Check(absl::StrCat("Bearer ", kOne)).ok());
  FileOf("");
  EXPECT_EQ(keys->Reload().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(copy.Check(absl::StrCat("Bearer ", kTwo)).ok());
}

}  // namespace
}  // namespace espalier
