#include "worker/default_folders.h"

#include <filesystem>
#include <fstream>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

DefaultFolders Choose(std::map<std::string, std::string> environment, bool is_root = false) {
  return ChooseDefaultFolders([&](const std::string& name) { return environment[name]; }, is_root,
                              "host-1");
}

TEST(DefaultFolders, AreThoseOfTheService) {
  const DefaultFolders folders = Choose({{"CACHE_DIRECTORY", "/var/cache/w"},
                                         {"STATE_DIRECTORY", "/var/lib/w:/var/lib/other"},
                                         {"HOME", "/home/u"}},
                                        /*is_root=*/true);
  EXPECT_EQ(folders.cache, "/var/cache/w");
  EXPECT_EQ(folders.state, "/var/lib/w");
}

TEST(DefaultFolders, OutliveARebootForRootAndUsers) {
  EXPECT_EQ(Choose({{"HOME", "/root"}}, true).cache, "/var/cache/espalier");
  EXPECT_EQ(Choose({{"HOME", "/root"}}, true).state, "/var/lib/espalier-worker");
  // Of a home that hosts share, each has a folder.
  EXPECT_EQ(Choose({{"HOME", "/home/u"}}).cache, "/home/u/.cache/espalier/host-1");
  EXPECT_EQ(Choose({{"HOME", "/home/u"}}).state, "/home/u/.local/state/espalier/host-1");
  const DefaultFolders xdg = Choose(
      {{"HOME", "/home/u"}, {"XDG_CACHE_HOME", "relative"}, {"XDG_STATE_HOME", "/scratch/u"}});
  EXPECT_EQ(xdg.cache, "/home/u/.cache/espalier/host-1");
  EXPECT_EQ(xdg.state, "/scratch/u/espalier/host-1");
  EXPECT_EQ(Choose({}).state, "");
}

TEST(DefaultFolders, AreMadeOrItIsSaidWhyNot) {
  const std::string top = ::testing::TempDir() + "/default_folders";
  std::filesystem::remove_all(top);
  EXPECT_TRUE(MakeWritableFolder(top + "/a/b").ok());
  EXPECT_TRUE(std::filesystem::is_directory(top + "/a/b"));
  std::ofstream(top + "/file") << "x";
  EXPECT_THAT(std::string(MakeWritableFolder(top + "/file/a").message()),
              ::testing::HasSubstr("/file/a cannot be made: Not a directory"));
  EXPECT_FALSE(MakeWritableFolder("/proc/espalier").ok());
}

}  // namespace
}  // namespace espalier
