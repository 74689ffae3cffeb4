#include "base/net/private_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST(CheckPrivateFile, FilesThatOthersCanReadOrChangeAreRefused) {
  const std::string path = ::testing::TempDir() + "/a-key", link = path + "-link";
  std::ofstream(path) << "key";
  std::filesystem::remove(link);
  std::filesystem::create_symlink(path, link);
  for (const mode_t mode : {0600, 0400}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_TRUE(CheckPrivateFile("key", path).ok()) << mode;
    EXPECT_TRUE(CheckPrivateFile("key", link).ok()) << mode;
  }
  for (const mode_t mode : {0644, 0604, 0602, 0660, 0620}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    for (const std::string& name : {path, link}) {
      const absl::Status status = CheckPrivateFile("key", name);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << mode;
      EXPECT_THAT(status.message(), HasSubstr("chmod 600 " + name));
    }
  }
  ASSERT_EQ(chmod(path.c_str(), 0440), 0);
  EXPECT_EQ(CheckPrivateFile("key", path).ok(), geteuid() == 0) << "root's group may read";
  EXPECT_TRUE(CheckPrivateFile("key", "/none").ok());
}

TEST(CheckPrivateFile, FilesOfAnotherUserAreRefused) {
  const std::string path = ::testing::TempDir() + "/their-key";
  std::ofstream(path) << "key";
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  if (chown(path.c_str(), geteuid() + 1, -1) != 0) GTEST_SKIP() << "only root can give files away";
  EXPECT_EQ(CheckPrivateFile("key", path).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier
