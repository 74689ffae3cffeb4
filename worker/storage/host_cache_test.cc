// The cache of a host under hostile neighbours and short space.
#include "worker/storage/host_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int64_t kRoom = 100;

class HostCacheTest : public ::testing::Test {
 protected:
  HostCacheTest()
      : parent_(fs::path(::testing::TempDir()) / "host_cache" /
                ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(parent_);
    fs::create_directories(parent_);
  }

  std::unique_ptr<HostCache> Open(int64_t max_bytes = kRoom) {
    auto cache = HostCache::Open(parent_, max_bytes);
    EXPECT_TRUE(cache.ok()) << cache.status();
    return *std::move(cache);
  }
  // Content of `bytes` bytes that is kept, and its hash.
  static std::string Keep(HostCache& cache, char letter, int bytes) {
    const std::string content(bytes, letter), hash = Sha256Hex(content);
    cache.Write(hash, content);
    absl::SleepFor(absl::Milliseconds(15));  // file times are that coarse
    return hash;
  }
  static int ModeOf(const std::string& path) {
    struct stat info;
    return stat(path.c_str(), &info) == 0 ? info.st_mode & 0777 : -1;
  }

  const fs::path parent_;
};

TEST_F(HostCacheTest, VersionsComeBackToAnyProcess) {
  const std::string version = "s3://bucket/key\n\"etag\"", content(50, 'a');
  const auto cache = Open(1000);
  EXPECT_EQ(cache->ReadVersion(version, 50), std::nullopt);
  cache->WriteVersion(version, content);
  EXPECT_EQ(Open()->ReadVersion(version, 50), content);
  EXPECT_EQ(Open()->ReadVersion("s3://bucket/key\n\"next\"", 50), std::nullopt);
  // The note is not believed.
  std::ofstream(cache->path() + "/" + Sha256Hex(version)) << version << "\n" << Sha256Hex("other");
  EXPECT_EQ(cache->ReadVersion(version, 50), std::nullopt);
  cache->WriteVersion(version, content);
  std::ofstream(cache->path() + "/" + Sha256Hex(content)) << std::string(50, 'b');
  EXPECT_EQ(cache->ReadVersion(version, 50), std::nullopt);
  cache->WriteVersion(version, content);
  EXPECT_EQ(cache->ReadVersion(version, 50), content);
}

TEST_F(HostCacheTest, ContentComesBackToAnyProcess) {
  const auto cache = Open();
  const std::string hash = Keep(*cache, 'a', 10);
  EXPECT_EQ(Open()->Read(hash, 10), std::string(10, 'a'));
  EXPECT_EQ(cache->Read(Sha256Hex("other"), 5), std::nullopt);
  EXPECT_EQ(ModeOf(cache->path()), 0700);
  EXPECT_EQ(ModeOf(cache->path() + "/" + hash), 0600);
}

TEST_F(HostCacheTest, OtherContentIsNoticedAndRemoved) {
  const auto cache = Open();
  const std::string hash = Keep(*cache, 'a', 10), path = cache->path() + "/" + hash;
  const std::string target = parent_ / "target";
  std::ofstream(target) << "the target";
  for (const auto& spoil : std::vector<std::function<void()>>{
           [&] { std::ofstream(path) << "aaaaaaaaaX"; },  // of the same size
           [&] { std::ofstream(path) << "aaa"; },
           [&] {
             fs::remove(path);
             fs::create_symlink(target, path);
           },
           [&] {
             fs::remove(path);
             ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
           }}) {
    spoil();
    EXPECT_EQ(cache->Read(hash, 10), std::nullopt);
    EXPECT_FALSE(fs::exists(fs::symlink_status(path)));
    Keep(*cache, 'a', 10);
    EXPECT_EQ(cache->Read(hash, 10), std::string(10, 'a'));
  }
  std::ifstream in(target);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "the target");
}

TEST_F(HostCacheTest, LinksAreNotWrittenThrough) {
  const auto cache = Open();
  const std::string content(10, 'a'), hash = Sha256Hex(content), target = parent_ / "target";
  std::ofstream(target) << "the target";
  fs::create_symlink(target, cache->path() + "/" + hash);
  cache->Write(hash, content);
  EXPECT_EQ(cache->Read(hash, 10), content);
  EXPECT_EQ(fs::file_size(target), 10u);
  std::ifstream in(target);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "the target");
}

TEST_F(HostCacheTest, FolderOfOthersIsRefused) {
  const std::string path = Open()->path();
  fs::permissions(path, fs::perms::all);
  Open();
  EXPECT_EQ(ModeOf(path), 0700) << "our own, opened by mistake, is closed again";
  fs::remove_all(path);
  fs::create_directory(parent_ / "elsewhere");
  fs::create_directory_symlink(parent_ / "elsewhere", path);
  const auto link = HostCache::Open(parent_, kRoom);
  EXPECT_EQ(link.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(link.status().message(), HasSubstr("--cache-dir"));
  fs::remove(path);
  fs::create_directory(path);
  if (chown(path.c_str(), geteuid() + 1, -1) != 0) GTEST_SKIP() << "only root can give files away";
  EXPECT_EQ(HostCache::Open(parent_, kRoom).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(HostCacheTest, LeastRecentlyUsedContentGivesWay) {
  const auto cache = Open();
  const std::string a = Keep(*cache, 'a', 40), b = Keep(*cache, 'b', 40);
  EXPECT_TRUE(cache->Read(a, 40).has_value());
  absl::SleepFor(absl::Milliseconds(15));
  const std::string c = Keep(*cache, 'c', 40);
  EXPECT_FALSE(cache->Read(b, 40).has_value());
  EXPECT_TRUE(cache->Read(a, 40).has_value());
  EXPECT_TRUE(cache->Read(c, 40).has_value());
  // What does not fit replaces nothing.
  EXPECT_FALSE(cache->Read(Keep(*cache, 'd', kRoom + 1), kRoom + 1).has_value());
  EXPECT_TRUE(cache->Read(a, 40).has_value());
  EXPECT_TRUE(Open(0)->Read(a, 40).has_value());
  EXPECT_FALSE(cache->Read(Keep(*Open(0), 'e', 1), 1).has_value()) << "none are kept";
  EXPECT_EQ(HostCache::Open(parent_, -1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(HostCacheTest, FilesWrittenInPiecesAreReadByRanges) {
  const auto cache = Open();
  auto writer = *cache->NewFile();
  ASSERT_TRUE(writer->Append("0123456", 7).ok());
  EXPECT_EQ(cache->OpenFile(Sha256Hex("0123456")), nullptr) << "not kept yet";
  ASSERT_TRUE(writer->Append("789", 3).ok());
  const auto hash = writer->Keep();
  ASSERT_EQ(hash.value_or(""), Sha256Hex("0123456789"));
  const auto file = cache->OpenFile(*hash);
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->size(), 10);
  EXPECT_EQ(Open()->Read(*hash, 10), "0123456789");
  cache->Remove(*hash);
  EXPECT_EQ(cache->OpenFile(*hash), nullptr);
  std::string read(4, '\0');
  ASSERT_TRUE(file->Read(3, 4, read.data()).ok()) << "it is open still";
  EXPECT_EQ(read, "3456");
  EXPECT_TRUE(absl::IsOutOfRange(file->Read(8, 4, read.data())));
}

TEST_F(HostCacheTest, AFileThatIsTooLargeOrGivenUpLeavesNothing) {
  const auto cache = Open();
  const std::string hash = Keep(*cache, 'a', 60);
  {
    auto writer = *cache->NewFile();
    ASSERT_TRUE(writer->Append(std::string(kRoom, 'b').data(), kRoom).ok());
    const absl::Status full = writer->Append("b", 1);
    EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(full.message(), HasSubstr("--cache-bytes=100"));
  }
  EXPECT_TRUE(cache->Read(hash, 60).has_value()) << "what is not kept takes no room";
  EXPECT_EQ(std::distance(fs::directory_iterator(cache->path()), fs::directory_iterator()), 1);
  auto writer = *cache->NewFile();
  ASSERT_TRUE(writer->Append(std::string(50, 'b').data(), 50).ok());
  ASSERT_TRUE(writer->Keep().ok());
  EXPECT_FALSE(cache->Read(hash, 60).has_value()) << "the least recently used gave way";
}

TEST_F(HostCacheTest, OnlyItsOwnFilesAreRemoved) {
  const auto cache = Open();
  const std::string hash = Keep(*cache, 'a', 10), stale = hash + ".0.tmp";
  for (const std::string& name : {std::string("notes"), stale, hash + ".1.tmp"}) {
    std::ofstream(cache->path() + "/" + name) << std::string(200, 'x');
  }
  fs::last_write_time(cache->path() + "/" + stale,
                      fs::file_time_type::clock::now() - std::chrono::hours(2));
  Keep(*cache, 'b', 95);
  EXPECT_FALSE(cache->Read(hash, 10).has_value());
  EXPECT_TRUE(fs::exists(cache->path() + "/notes"));
  EXPECT_TRUE(fs::exists(cache->path() + "/" + hash + ".1.tmp"));
  EXPECT_FALSE(fs::exists(cache->path() + "/" + stale)) << "of a killed process";
}

}  // namespace
}  // namespace espalier
