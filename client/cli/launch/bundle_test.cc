#include "client/cli/launch/bundle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace espalier {
namespace {

using ::testing::HasSubstr;

namespace fs = std::filesystem;

class BundleTest : public ::testing::Test {
 protected:
  BundleTest() {
    fs::remove_all(folder_);
    fs::create_directories(folder_ + "/tmp");
    fs::create_directories(folder_ + "/programs");
    for (const char* const name : {"espalierd", "espalier-worker"}) {
      std::ofstream(folder_ + "/programs/" + name) << name;
    }
    setenv("TMPDIR", (folder_ + "/tmp").c_str(), 1);
  }
  ~BundleTest() override {
    unsetenv("TMPDIR");
    setenv("PATH", path_.c_str(), 1);
  }

  const std::string path_ = getenv("PATH");
  const std::string folder_ = ::testing::TempDir() + "/bundle_test";
};

TEST_F(BundleTest, AFolderIsPackedForAsLongAsItIsNeeded) {
  std::string key;
  {
    const auto bundle = FindBundle(folder_ + "/programs", "");
    ASSERT_TRUE(bundle.ok()) << bundle.status();
    EXPECT_TRUE(fs::exists(bundle->file));
    EXPECT_EQ(fs::status(bundle->file).permissions(),
              fs::perms::owner_read | fs::perms::owner_write);
    key = bundle->key;
    // The same content, while the first one is there.
    EXPECT_EQ(FindBundle(folder_ + "/programs", "")->key, key);
    EXPECT_TRUE(fs::exists(bundle->file));
  }
  EXPECT_TRUE(fs::is_empty(folder_ + "/tmp"));
}

TEST_F(BundleTest, AFileIsTheUsers) {
  const std::string file = folder_ + "/given.tar";
  std::ofstream(file) << "content";
  EXPECT_EQ(FindBundle(file, "")->file, file);
  EXPECT_TRUE(fs::exists(file));
}

TEST_F(BundleTest, WhatCannotBePackedLeavesNothing) {
  fs::create_directories(folder_ + "/bin");
  std::ofstream(folder_ + "/bin/tar") << "#!/bin/sh\necho 'tar: no' >&2\nexit 2\n";
  fs::permissions(folder_ + "/bin/tar", fs::perms::owner_all);
  setenv("PATH", (folder_ + "/bin:" + path_).c_str(), 1);
  EXPECT_THAT(std::string(FindBundle(folder_ + "/programs", "").status().message()),
              HasSubstr("tar: no"));
  EXPECT_TRUE(fs::is_empty(folder_ + "/tmp"));
}

}  // namespace
}  // namespace espalier
