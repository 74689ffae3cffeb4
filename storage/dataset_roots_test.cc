// A client reads files beneath the folders that the operator named, and no others.
#include "storage/dataset_roots.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class DatasetRootsTest : public ::testing::Test {
 protected:
  DatasetRootsTest()
      : top_(fs::path(::testing::TempDir()) / "dataset_roots" /
             ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(top_);
    for (const char* folder : {"sets/deep", "sets/data", "secret", "sets-of-others"}) {
      fs::create_directories(top_ / folder);
    }
    for (const char* file : {"sets/a.txt", "sets/deep/b.txt", "sets/data/jobs.db", "sets/key",
                             "secret/key", "sets-of-others/c.txt"}) {
      std::ofstream(top_ / file) << file;
    }
  }

  std::unique_ptr<DatasetRoots> Make(const std::string& root) {
    auto roots = DatasetRoots::Create({root});
    EXPECT_TRUE(roots.ok()) << roots.status();
    return *std::move(roots);
  }
  std::string At(const std::string& name) const { return (top_ / name).string(); }
  static std::string Content(const DatasetRoots& roots, const std::string& path) {
    auto file = roots.Open(path);
    EXPECT_TRUE(file.ok()) << file.status();
    if (!file.ok()) return "";
    std::string text((*file)->size(), '\0');
    EXPECT_TRUE((*file)->Read(0, (*file)->size(), text.data()).ok());
    return text;
  }
  static void ExpectRefused(const DatasetRoots& roots, const std::string& path) {
    EXPECT_EQ(roots.Open(path).status().code(), absl::StatusCode::kPermissionDenied)
        << path << ": " << roots.Open(path).status();
  }

  const fs::path top_;
};

TEST_F(DatasetRootsTest, FilesBeneathARootAreRead) {
  fs::create_directory_symlink(top_ / "sets", top_ / "link-to-root");
  fs::create_symlink("deep/b.txt", top_ / "sets/relative");
  fs::create_symlink(top_ / "sets/deep/b.txt", top_ / "sets/absolute");
  for (const std::string& root : {At("sets"), At("sets/"), At("link-to-root")}) {
    const auto roots = Make(root);
    EXPECT_EQ(Content(*roots, At("sets/a.txt")), "sets/a.txt");
    for (const char* name : {"deep/b.txt", "relative", "absolute", "data/../deep/b.txt"}) {
      EXPECT_EQ(Content(*roots, At("sets/") + name), "sets/deep/b.txt");
    }
  }
  EXPECT_EQ(Content(*Make(At("link-to-root")), At("link-to-root/a.txt")), "sets/a.txt");
}

TEST_F(DatasetRootsTest, NothingElseIsOpened) {
  fs::create_symlink(top_ / "secret/key", top_ / "sets/link");
  fs::create_symlink("../secret/key", top_ / "sets/relative");
  fs::create_directory_symlink(top_ / "secret", top_ / "sets/folder");
  const auto roots = Make(At("sets"));
  for (const std::string& path :
       {At("secret/key"), At("sets/link"), At("sets/relative"), At("sets/folder/key"),
        At("sets/../secret/key"), At("sets-of-others/c.txt"), At("sets"),
        std::string("/etc/passwd"), std::string("/proc/self/environ"), std::string("a.txt"),
        std::string()}) {
    ExpectRefused(*roots, path);
  }
  // What exists cannot be told from what does not.
  EXPECT_EQ(roots->Open(At("secret/key")).status().code(),
            roots->Open(At("secret/none")).status().code());
  EXPECT_EQ(roots->Open(At("sets/deep")).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(roots->Open(At("sets/none")).status().code(), absl::StatusCode::kNotFound);
}

// No request is sent: there are no credentials here, and that would be the error.
TEST_F(DatasetRootsTest, OtherObjectsOfS3AreNotOpened) {
  s3::S3World world = s3::SystemS3World();
  int asked = 0;
  world.environment = [&asked](const std::string& name) {
    ++asked;
    return name == "AWS_ENDPOINT_URL" ? "http://127.0.0.1:9" : "";
  };
  const auto roots =
      DatasetRoots::Create({At("sets"), "s3://data/sets/", "s3://all"}, std::move(world));
  ASSERT_TRUE(roots.ok()) << roots.status();
  for (const char* url :
       {"s3://data/secret.npz", "s3://data/sets", "s3://data/setsecret/a.npz", "s3://dat/sets/a",
        "s3://data2/sets/a.npz", "s3://all", "s3://Data/sets/a.npz"}) {
    const absl::Status opened = (*roots)->Open(url).status();
    EXPECT_TRUE(absl::IsPermissionDenied(opened)) << url << ": " << opened;
    EXPECT_THAT(opened.message(),
                ::testing::AllOf(HasSubstr("--dataset-root"), HasSubstr("s3://data/sets, s3://all"),
                                 ::testing::Not(HasSubstr("secret"))));
  }
  for (const char* url : {"s3://data/sets/../secret.npz", "s3://data/sets//a", "s3://"}) {
    EXPECT_TRUE(absl::IsInvalidArgument((*roots)->Open(url).status())) << url;
  }
  EXPECT_EQ(asked, 0);
  // Allowed: only now the environment is looked at.
  (*roots)->Open("s3://data/sets/a.npz").status().IgnoreError();
  EXPECT_GT(asked, 0);

  const auto none = DatasetRoots::Create({At("sets")});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_THAT((*none)->Open("s3://data/sets/a.npz").status().message(),
              HasSubstr("--dataset-root=s3://"));
  EXPECT_THAT(DatasetRoots::Create({"s3://x"}).status().message(),
              HasSubstr("--dataset-root=s3://x:"));
}

TEST_F(DatasetRootsTest, WithoutARootNothingIsOpened) {
  auto roots = DatasetRoots::Create({});
  ASSERT_TRUE(roots.ok());
  ExpectRefused(**roots, At("sets/a.txt"));
  EXPECT_THAT((*roots)->Open(At("sets/a.txt")).status().message(), HasSubstr("--dataset-root="));
}

TEST_F(DatasetRootsTest, TheDaemonsOwnFilesAreNotOpenedBeneathARoot) {
  fs::create_hard_link(top_ / "sets/key", top_ / "sets/same");
  fs::create_symlink(top_ / "sets/data", top_ / "data");
  const auto roots = Make(At("sets"));
  EXPECT_EQ(Content(*roots, At("sets/data/jobs.db")), "sets/data/jobs.db");
  roots->Exclude(At("data"));  // by another name
  roots->Exclude(At("sets/key"));
  roots->Exclude(At("sets/later"));
  roots->Exclude("");
  fs::create_directory(top_ / "sets/later");
  std::ofstream(top_ / "sets/later/d.txt") << "d";
  for (const char* name : {"data/jobs.db", "key", "same", "later/d.txt", "deep/../data/jobs.db"}) {
    ExpectRefused(*roots, At("sets/") + name);
  }
  EXPECT_EQ(Content(*roots, At("sets/a.txt")), "sets/a.txt");
}

TEST_F(DatasetRootsTest, UnusableRootsAreNamed) {
  fs::create_symlink("/", top_ / "all");
  for (const std::string& root :
       {std::string("sets"), At("none"), At("sets/a.txt"), std::string("/"), std::string("//"),
        std::string("/proc/.."), At("all"), std::string()}) {
    const auto roots = DatasetRoots::Create({At("sets"), root});
    EXPECT_EQ(roots.status().code(), absl::StatusCode::kInvalidArgument) << root;
    EXPECT_THAT(roots.status().message(), HasSubstr("--dataset-root=" + root + ":"));
  }
}

}  // namespace
}  // namespace espalier
