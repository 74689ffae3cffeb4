#include "server/standby/shared_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/time/clock.h"
#include "server/store/etcd/etcd_process.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(JobStoreAddressTest, EndpointsAndPrefix) {
  EXPECT_TRUE(ParseJobStore("sqlite")->endpoints.empty());
  const auto one = ParseJobStore("etcd://127.0.0.1:2379");
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_THAT(one->endpoints, ElementsAre("127.0.0.1:2379"));
  EXPECT_EQ(one->prefix, "/espalier");
  const auto three = ParseJobStore("etcd://a:2379,[::1]:2380,c:1/team/a/");
  ASSERT_TRUE(three.ok()) << three.status();
  EXPECT_THAT(three->endpoints, ElementsAre("a:2379", "[::1]:2380", "c:1"));
  EXPECT_EQ(three->prefix, "/team/a");
  for (const char* bad : {"", "etcd", "etcd://", "etcd://a", "etcd://a:1,", "etcd://a:b/p",
                          "mysql://a:1", "etcd:/a:1"}) {
    EXPECT_EQ(ParseJobStore(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(ParseJobStore(bad).status().message()), HasSubstr("--job-store="));
  }
}

TEST(SharedStoreOptionsTest, OffLoopbackOnlyWithTlsOrInsecure) {
  SharedStoreOptions options;
  options.address = *ParseJobStore("etcd://127.0.0.1:2379");
  EXPECT_TRUE(CheckSharedStoreOptions(options).ok());
  options.address = *ParseJobStore("etcd://127.0.0.1:2379,10.0.0.9:2379");
  EXPECT_THAT(std::string(CheckSharedStoreOptions(options).message()),
              HasSubstr("etcd at 10.0.0.9:2379 is off loopback"));
  options.tls.ca = "ca.pem";
  EXPECT_TRUE(CheckSharedStoreOptions(options).ok());
  options.user = "espalier";
  EXPECT_FALSE(CheckSharedStoreOptions(options).ok()) << "without a password";
  options.password_file = "file";
  options.lease = absl::Seconds(1);
  EXPECT_THAT(std::string(CheckSharedStoreOptions(options).message()),
              HasSubstr("--leader-lease-seconds"));
  options.lease = absl::Seconds(10);
  options.address = *ParseJobStore("sqlite");
  EXPECT_FALSE(CheckSharedStoreOptions(options).ok()) << "flags that would do nothing";
}

class DataFolderTest : public ::testing::Test {
 protected:
  DataFolderTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  absl::Status Claim(const std::string& store) {
    return ClaimDataFolder(*files_, folder_, *ParseJobStore(store));
  }

  const std::string folder_ = ::testing::TempDir() + "/data";
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
};

TEST_F(DataFolderTest, TheJobsOfAFolderStayInOneStore) {
  EXPECT_TRUE(Claim("sqlite").ok());
  EXPECT_TRUE(Claim("etcd://a:1/p").ok());
  EXPECT_TRUE(Claim("etcd://b:2,a:1/p").ok()) << "by another way";
  for (const char* other : {"sqlite", "etcd://a:1/q"}) {
    const absl::Status refused = Claim(other);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("are in etcd /p: give --job-store"));
  }
}

TEST_F(DataFolderTest, JobsInSqliteAreNotLeftBehind) {
  std::ofstream(folder_ + "/espalier.db") << "x";
  EXPECT_TRUE(Claim("sqlite").ok());
  const absl::Status refused = Claim("etcd://a:1/p");
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("espalier.db"));
  EXPECT_TRUE(Claim("sqlite").ok());
}

// What a coordinator finds that leads with jobs in etcd.
class SharedStoreTest : public DataFolderTest {
 protected:
  void SetUp() override {
    if (!EtcdProcess::IsInstalled()) {
      GTEST_SKIP() << "etcd is not installed: deploy/install.sh --tests";
    }
    etcd_ = std::make_unique<EtcdProcess>(::testing::TempDir() + "/etcd");
  }
  absl::Status Open(std::string id, DataFolders folders = DataFolders::kShared) {
    SharedStoreOptions options;
    options.address = *ParseJobStore("etcd://" + etcd_->endpoint() + "/p");
    const auto store = SharedStore::Start(options, "a:1", [](const std::string&) {});
    if (!store.ok()) return store.status();
    while (!(*store)->leads()) absl::SleepFor(absl::Milliseconds(5));
    const absl::Status opened = (*store)->Open(*files_, folder_, folders, &id).status();
    id_ = id;
    return opened;
  }
  bool Claimed() const { return std::filesystem::exists(folder_ + "/job-store"); }

  std::unique_ptr<EtcdProcess> etcd_;
  std::string id_;  // that Open returned
};

TEST_F(SharedStoreTest, CoordinatorsWithFoldersOfTheirOwnFindTheSameId) {
  EXPECT_EQ(Open("one", DataFolders::kOwn), absl::OkStatus());
  const std::string id = id_;
  EXPECT_NE(id, "one") << "the folder may come to another cluster";
  std::filesystem::remove(folder_ + "/job-store");
  EXPECT_EQ(Open("two", DataFolders::kOwn), absl::OkStatus());
  EXPECT_EQ(id_, id);
  const absl::Status shared = Open("two");
  EXPECT_THAT(std::string(shared.message()), HasSubstr("--artifact-store")) << shared;
}

// Jobs whose checkpoints are marked as those of the folder go on when each gets its own.
TEST_F(SharedStoreTest, TheIdOfASharedFolderStays) {
  EXPECT_EQ(Open("one"), absl::OkStatus());
  std::filesystem::remove(folder_ + "/job-store");
  EXPECT_EQ(Open("two", DataFolders::kOwn), absl::OkStatus());
  EXPECT_EQ(id_, "one");
}

TEST_F(SharedStoreTest, AFolderIsClaimedOnceTheStoreIsBoundToIt) {
  EXPECT_EQ(Open("one"), absl::OkStatus());
  EXPECT_TRUE(Claimed());
  EXPECT_EQ(Open("one"), absl::OkStatus()) << "another coordinator leads";
  std::filesystem::remove(folder_ + "/job-store");  // as in another data folder
  EXPECT_THAT(std::string(Open("two").message()), HasSubstr("another data folder"));
  EXPECT_FALSE(Claimed()) << "it may be given another store";
}

// Otherwise the coordinator would lead without jobs, and take what is in the folder for left over.
TEST_F(SharedStoreTest, AnEtcdThatLacksTheFoldersJobsIsRefused) {
  EXPECT_EQ(Open("one"), absl::OkStatus());
  etcd_ = std::make_unique<EtcdProcess>(::testing::TempDir() + "/etcd-made-anew");
  const absl::Status refused = Open("one");
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("restore its snapshot"));
  std::filesystem::remove(folder_ + "/job-store");
  EXPECT_EQ(Open("one"), absl::OkStatus()) << "to begin without them";
}

}  // namespace
}  // namespace espalier
