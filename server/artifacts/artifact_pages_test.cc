#include "server/artifacts/artifact_pages.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing/fake_clock.h"
#include "server/store/sqlite_store.h"

namespace espalier {
namespace {

using Names = std::vector<std::string>;

class ArtifactPagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string root = ::testing::TempDir() + "/artifact_pages";
    std::filesystem::remove_all(root);
    std::filesystem::create_directories(root);
    store_ = *SqliteStore::Open(root + "/db");
    artifacts_ = *ArtifactStore::Open(root, files_.get(), store_.get(), &clock_);
  }
  void Put(const std::string& name, const std::string& owner = "ann",
           v1::Artifact::Kind kind = v1::Artifact::DATASET) {
    auto upload = artifacts_->Begin({name, kind, {}, owner}, false);
    ASSERT_TRUE(upload.ok()) << upload.status();
    ASSERT_EQ((*upload)->StartFile("f"), absl::OkStatus());
    const auto made = (*upload)->Commit();
    ASSERT_TRUE(made.ok()) << made.status();
    clock_.Advance(absl::Seconds(1));
  }
  v1::ListArtifactsReply List(const v1::ListArtifactsRequest& request) {
    v1::ListArtifactsReply reply;
    EXPECT_EQ(
        ListArtifacts(
            *artifacts_, request,
            [&](const std::string& owner) { return only_.empty() || owner == only_; }, &reply),
        absl::OkStatus());
    return reply;
  }
  static Names NamesOf(const v1::ListArtifactsReply& reply) {
    Names names;
    for (const v1::Artifact& artifact : reply.artifacts()) names.push_back(artifact.name());
    return names;
  }
  Names Pages(v1::ListArtifactsRequest request) {
    Names all;
    while (true) {
      const v1::ListArtifactsReply reply = List(request);
      for (const std::string& name : NamesOf(reply)) all.push_back(name);
      if (reply.next_page_token().empty()) return all;
      request.set_page_token(reply.next_page_token());
    }
  }

  std::string only_;  // who asks; empty: an admin
  FakeClock clock_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<ArtifactStore> artifacts_;
};

TEST_F(ArtifactPagesTest, FiltersAreAllMet) {
  const int64_t start = clock_.NowUnixMillis();
  Put("text/a");
  Put("net", "bob", v1::Artifact::ONNX);
  Put("text/b", "bob");
  v1::ListArtifactsRequest request;
  EXPECT_EQ(NamesOf(List(request)), (Names{"net", "text/a", "text/b"}));
  request.set_name("text/*");
  EXPECT_EQ(NamesOf(List(request)), (Names{"text/a", "text/b"}));
  request.set_owner("bob");
  EXPECT_EQ(NamesOf(List(request)), (Names{"text/b"}));
  request.Clear();
  request.add_kinds(v1::Artifact::ONNX);
  EXPECT_EQ(NamesOf(List(request)), (Names{"net"}));
  request.Clear();
  request.set_created_from_unix_ms(start + 1000);
  request.set_created_before_unix_ms(start + 2000);
  EXPECT_EQ(NamesOf(List(request)), (Names{"net"}));
  request.Clear();
  only_ = "ann";
  EXPECT_EQ(NamesOf(List(request)), (Names{"text/a"}));
  EXPECT_EQ(List(request).matching(), 1);
}

TEST_F(ArtifactPagesTest, PagesHoldEveryArtifactOnceInEitherOrder) {
  Names names;
  for (int i = 0; i < 9; ++i) {
    names.push_back(absl::StrCat("a", 9 - i));  // the newest is a1
    Put(names.back());
  }
  v1::ListArtifactsRequest request;
  for (const int size : {1, 2, 4, 8, 9, 10}) {
    request.set_page_size(size);
    request.set_newest_first(false);
    EXPECT_EQ(Pages(request), Names(names.rbegin(), names.rend())) << size;
    request.set_newest_first(true);
    EXPECT_EQ(Pages(request), Names(names.rbegin(), names.rend())) << size;
    EXPECT_EQ(List(request).artifacts_size(), std::min(size, 9));
    EXPECT_EQ(List(request).matching(), 9);
  }
  Put("z");
  request.set_newest_first(true);
  EXPECT_EQ(Pages(request).front(), "z");
  request.set_newest_first(false);
  EXPECT_EQ(Pages(request).back(), "z");
}

TEST_F(ArtifactPagesTest, BadRequestsAreRefused) {
  const auto error = [&](const v1::ListArtifactsRequest& request) {
    v1::ListArtifactsReply reply;
    return std::string(ListArtifacts(
                           *artifacts_, request, [](const std::string&) { return true; }, &reply)
                           .message());
  };
  v1::ListArtifactsRequest request;
  request.set_page_size(5000);
  EXPECT_NE(error(request).find("page_size is 5000"), std::string::npos);
  request.Clear();
  request.set_page_token("n7");
  EXPECT_NE(error(request).find("page_token 'n7'"), std::string::npos);
  request.Clear();
  request.mutable_kinds()->Add(17);
  EXPECT_NE(error(request).find("kinds"), std::string::npos);
}

}  // namespace
}  // namespace espalier
