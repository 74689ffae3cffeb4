// The S3 store does what every store does, and survives what S3 and networks do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

#include "storage/checkpoint_store_contract.h"
#include "tests/s3/s3_test_world.h"

namespace espalier::s3 {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TestedS3Store : public TestedStore {
 public:
  CheckpointStore& store() override { return *store_; }

 private:
  const std::unique_ptr<S3CheckpointStore> store_ = NewStore(NewPrefix());
};

std::unique_ptr<TestedStore> MakeS3Store() { return std::make_unique<TestedS3Store>(); }

}  // namespace
}  // namespace espalier::s3

namespace espalier {
INSTANTIATE_TEST_SUITE_P(S3, CheckpointStoreContract, ::testing::Values(s3::MakeS3Store));
}  // namespace espalier

namespace espalier::s3 {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

std::string Bytes(int64_t count) {
  std::string bytes(static_cast<size_t>(count), '\0');
  uint32_t state = 1;
  for (char& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
}

class S3StoreTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { signal(SIGPIPE, SIG_IGN); }
  void SetUp() override { proxy_.Set("[]"); }
  void TearDown() override { proxy_.Set("[]"); }

  static absl::Status Write(CheckpointStore& store, const std::string& name,
                            const std::string& content) {
    auto upload = store.Put(name);
    if (!upload.ok()) return upload.status();
    absl::Status s = (*upload)->Append(content.data(), static_cast<int64_t>(content.size()));
    return s.ok() ? (*upload)->Commit() : s;
  }

  static std::string Content(CheckpointStore& store, const std::string& name) {
    const absl::StatusOr<std::string> content = ReadObject(store, name, int64_t{1} << 30);
    return content.ok() ? *content : content.status().ToString();
  }

  static std::string Told(const absl::Status& status) { return status.ToString(); }

  Proxy proxy_;
  const std::string prefix_ = NewPrefix();
  std::unique_ptr<S3CheckpointStore> store_ = NewStore(prefix_);
};

TEST_F(S3StoreTest, PassingFaultsAreNotSeen) {
  const std::string bytes = Bytes(17 * kMiB);
  ASSERT_TRUE(store_->Check().ok());
  for (const char* fault :
       {"'do': 'status', 'status': 503, 'code': 'SlowDown'",
        "'do': 'status', 'status': 503, 'code': 'ServiceUnavailable'",
        "'do': 'status', 'status': 500, 'code': 'InternalError'",
        "'do': 'status', 'status': 429, 'code': 'TooManyRequests'", "'do': 'status', 'status': 502",
        "'do': 'status', 'status': 504", "'do': 'reset'", "'do': 'lose answer'", "'do': 'truncate'",
        "'do': 'slow', 'seconds': 0.05"}) {
    // Two of each kind of request, in the middle of all.
    const auto twice = [&](const std::string& method, const std::string& match) {
      return absl::StrCat("{'method': '", method, "', 'match': '", match, "', 'count': 2, ", fault,
                          "}");
    };
    proxy_.Set(absl::StrCat("[", twice("POST", "uploads"), ",", twice("PUT", "partNumber=2"), ",",
                            twice("POST", "uploadId"), ",", twice("PUT", "manifest"), ",",
                            twice("HEAD", ""), ",", twice("GET", "large"), ",",
                            twice("GET", "list-type"), ",", twice("GET", "uploads"), ",",
                            twice("DELETE", ""), "]"));
    const absl::Status written = Write(*store_, "job/large", bytes);
    EXPECT_TRUE(written.ok()) << fault << ": " << written;
    const absl::Status put = store_->PutIfAbsent("job/manifest", "the manifest");
    EXPECT_TRUE(put.ok()) << fault << ": " << put;
    EXPECT_TRUE(Content(*store_, "job/large") == bytes) << fault;
    const auto objects = store_->List("job");
    ASSERT_TRUE(objects.ok()) << fault << ": " << objects.status();
    EXPECT_EQ(objects->size(), 2u) << fault;
    const absl::Status deleted = store_->Delete("job");
    EXPECT_TRUE(deleted.ok()) << fault << ": " << deleted;
    EXPECT_TRUE(store_->List("")->empty()) << fault;
  }
}

TEST_F(S3StoreTest, GivesUpInTimeAndSaysWhy) {
  proxy_.Set("[{'do': 'status', 'status': 400, 'code': 'RequestTimeout', 'count': 2}]");
  const absl::Status slow = Write(*store_, "job/object", "x");  // "the connection was idle"
  EXPECT_TRUE(slow.ok()) << slow;

  S3World world = TestWorld();
  world.retry.total = absl::Seconds(40);
  auto pauses = std::make_shared<RememberedPauses>();
  world.pauses = pauses;
  const auto store = NewStore(prefix_, world);
  proxy_.Set("[{'do': 'status', 'status': 503, 'code': 'SlowDown', 'count': 1000}]");
  const absl::Status put = Write(*store, "job/object", "x");
  EXPECT_TRUE(absl::IsUnavailable(put));
  EXPECT_THAT(Told(put),
              AllOf(HasSubstr(absl::StrCat("s3://", TestBucket(), "/", prefix_, "/job/object")),
                    HasSubstr("503 SlowDown: injected"), HasSubstr("attempts in")));
  EXPECT_GT(pauses->slept(), absl::Seconds(10));
  EXPECT_LE(pauses->slept(), absl::Seconds(40));
  EXPECT_LE(proxy_.Requests().size(), 12u);

  proxy_.Set("[{'do': 'reset', 'count': 1000}]");
  EXPECT_TRUE(absl::IsUnavailable(store->Open("job/object").status()));
}

TEST_F(S3StoreTest, AnAnswerThatDoesNotComeIsNotWaitedFor) {
  S3World world = TestWorld();
  world.stall = absl::Seconds(1);
  const auto store = NewStore(prefix_, world);
  proxy_.Set("[{'method': 'PUT', 'do': 'stall', 'seconds': 20}]");
  const absl::Time begin = absl::Now();
  const absl::Status put = Write(*store, "job/object", "x");
  EXPECT_TRUE(put.ok()) << put;
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
}

// An attempt that is over must not keep its worker busy, whatever S3 does.
TEST_F(S3StoreTest, CancelledCallsEndSoon) {
  for (const char* fault : {"'do': 'stall', 'seconds': 10", "'do': 'status', 'status': 503"}) {
    S3World world = TestWorld();
    world.pauses = NewSystemPauses();
    const auto cancelled = std::make_shared<std::atomic<bool>>(false);
    const auto store = NewStore(prefix_, world)->Until(cancelled);
    proxy_.Set(absl::StrCat("[{'method': 'PUT', 'match': 'partNumber', 'count': 1000, ", fault,
                            "},", "{'method': 'DELETE', 'count': 1000, ", fault, "}]"));
    absl::Time begin;
    std::thread ends([&] {
      absl::SleepFor(absl::Milliseconds(300));
      begin = absl::Now();
      *cancelled = true;
    });
    const absl::Status put = Write(*store, "job/object", Bytes(20 * kMiB));
    ends.join();
    EXPECT_FALSE(put.ok());
    // A second until libcurl sees it, three for the end of the upload.
    EXPECT_LT(absl::Now() - begin, absl::Seconds(8)) << fault << ": " << put;
    EXPECT_TRUE(absl::IsCancelled(store->Open("job/object").status()));
  }
}

TEST_F(S3StoreTest, ALostAnswerToPutIfAbsentIsNoLoss) {
  ASSERT_TRUE(store_->Check().ok());
  proxy_.Set("[{'method': 'PUT', 'do': 'lose answer'}]");
  const absl::Status put = store_->PutIfAbsent("job/manifest", "ours");
  EXPECT_TRUE(put.ok()) << put;  // the second attempt met our own object: 412
  EXPECT_EQ(proxy_.Count("manifest 412"), 1);

  proxy_.Set(
      "[{'method': 'PUT', 'do': 'status', 'status': 409, "
      "'code': 'ConditionalRequestConflict'}]");
  EXPECT_TRUE(absl::IsAlreadyExists(store_->PutIfAbsent("job/manifest", "theirs")));
  EXPECT_EQ(Content(*store_, "job/manifest"), "ours");
}

TEST_F(S3StoreTest, ALostOrLateAnswerToTheEndOfAnUploadIsNoLoss) {
  const std::string bytes = Bytes(9 * kMiB);
  proxy_.Set("[{'method': 'POST', 'match': 'uploadId', 'do': 'lose answer'}]");
  const absl::Status lost = Write(*store_, "job/lost", bytes);
  EXPECT_TRUE(lost.ok()) << lost;
  EXPECT_EQ(proxy_.Count("POST"), 3) << "begin, end, end";
  EXPECT_TRUE(Content(*store_, "job/lost") == bytes);

  // S3 answers 200 and then finds that it could not do it.
  proxy_.Set(
      "[{'method': 'POST', 'match': 'uploadId', 'do': 'late error', "
      "'code': 'InternalError'}]");
  const absl::Status late = Write(*store_, "job/late", bytes);
  EXPECT_TRUE(late.ok()) << late;
  EXPECT_TRUE(Content(*store_, "job/late") == bytes);

  // Nor is an answer of something else, as of a proxy, a completed upload.
  proxy_.Set("[{'method': 'POST', 'match': 'uploadId', 'do': 'empty'}]");
  const absl::Status empty = Write(*store_, "job/empty", bytes);
  EXPECT_TRUE(empty.ok()) << empty;
  EXPECT_TRUE(Content(*store_, "job/empty") == bytes);

  // Somebody else aborted it: that is an error, though there is an object.
  proxy_.Set(
      "[{'method': 'POST', 'match': 'uploadId', 'do': 'status', 'status': 404, "
      "'code': 'NoSuchUpload'}]");
  EXPECT_FALSE(Write(*store_, "job/late", Bytes(9 * kMiB + 1)).ok());
  EXPECT_TRUE(Content(*store_, "job/late") == bytes);
}

TEST_F(S3StoreTest, PartsOfAFailedUploadAreRemoved) {
  S3Client client(TestWorld(), TestBucket());
  proxy_.Set(
      "[{'method': 'PUT', 'match': 'partNumber=2', 'do': 'status', 'status': 403, "
      "'code': 'AccessDenied'}]");
  const absl::Status written = Write(*store_, "job/object", Bytes(40 * kMiB));
  EXPECT_TRUE(absl::IsPermissionDenied(written)) << written;
  const auto uploads = client.ListUploads(prefix_);
  ASSERT_TRUE(uploads.ok()) << uploads.status();
  EXPECT_TRUE(uploads->empty());
  EXPECT_TRUE(store_->List("")->empty());
}

TEST_F(S3StoreTest, DeleteAbortsUploadsBeneathAndKeepsOthers) {
  S3Client client(TestWorld(), TestBucket());
  // Of a worker that was killed.
  for (const char* name : {"a/x/1", "a/x", "a/xy", "a/kept/1", "b"}) {
    ASSERT_TRUE(client.BeginUpload(absl::StrCat(prefix_, "/", name), "tag").ok());
  }
  ASSERT_TRUE(Write(*store_, "a/kept/2", "kept").ok());
  const absl::Status deleted = store_->DeleteExcept("a/x", {});
  ASSERT_TRUE(deleted.ok()) << deleted;
  const auto names = [&] {
    std::vector<std::string> names;
    const auto uploads = client.ListUploads(prefix_);
    EXPECT_TRUE(uploads.ok()) << uploads.status();
    for (const PendingUpload& upload : *uploads) {
      names.push_back(upload.key.substr(prefix_.size() + 1));
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  EXPECT_THAT(names(), ::testing::ElementsAre("a/kept/1", "a/xy", "b"));
  ASSERT_TRUE(store_->DeleteExcept("a", {"a/kept"}).ok());
  EXPECT_THAT(names(), ::testing::ElementsAre("a/kept/1", "b"));
  EXPECT_EQ(Content(*store_, "a/kept/2"), "kept");
}

TEST_F(S3StoreTest, AReaderNeverSeesPartsOfTwoObjects) {
  ASSERT_TRUE(Write(*store_, "job/object", std::string(100, 'a')).ok());
  auto file = store_->Open("job/object");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(Write(*store_, "job/object", std::string(100, 'b')).ok());
  char byte;
  const absl::Status read = (*file)->Read(0, 1, &byte);
  EXPECT_TRUE(absl::IsFailedPrecondition(read)) << read;
  EXPECT_THAT(Told(read), HasSubstr("was replaced"));
}

TEST_F(S3StoreTest, ReadingOnTakesFewRequests) {
  const std::string bytes = Bytes(24 * kMiB);
  ASSERT_TRUE(Write(*store_, "job/shard", bytes).ok());
  auto file = store_->Open("job/shard");
  ASSERT_TRUE(file.ok());
  proxy_.Set("[]");
  std::string piece(64 << 10, '\0');
  for (int64_t at = 0; at < (*file)->size(); at += 64 << 10) {
    ASSERT_TRUE((*file)->Read(at, 64 << 10, piece.data()).ok());
    ASSERT_EQ(bytes.compare(static_cast<size_t>(at), piece.size(), piece), 0) << at;
  }
  EXPECT_LE(proxy_.Count("GET"), 8);  // 384 reads
  file->reset();
  // A look at the beginning does not fetch the rest.
  file = store_->Open("job/shard");
  proxy_.Set("[]");
  ASSERT_TRUE((*file)->Read(0, 8, piece.data()).ok());
  ASSERT_TRUE((*file)->Read(8, 1000, piece.data()).ok());
  EXPECT_EQ(proxy_.Count("GET"), 1);
}

TEST_F(S3StoreTest, AServerThatIgnoresTheConditionIsRefused) {
  // It takes the second object, too.
  proxy_.Set("[{'method': 'PUT', 'skip': 1, 'do': 'status', 'status': 200}]");
  const absl::Status put = store_->PutIfAbsent("job/manifest", "x");
  EXPECT_TRUE(absl::IsFailedPrecondition(put)) << put;
  EXPECT_THAT(Told(put), HasSubstr("If-None-Match"));
  EXPECT_TRUE(store_->List("")->empty());  // nothing remains of the check
}

// Jobs of two coordinators have the same names: each would delete the other's checkpoints.
TEST_F(S3StoreTest, APrefixBelongsToOneDataFolder) {
  EXPECT_EQ(*store_->Owner(), "");
  proxy_.Set("[{'method': 'PUT', 'do': 'lose answer'}]");
  EXPECT_EQ(store_->Claim("one"), absl::OkStatus());
  EXPECT_EQ(*store_->Owner(), "one");
  EXPECT_EQ(store_->url(), absl::StrCat("s3://", TestBucket(), "/", prefix_));
  EXPECT_EQ(NewStore(prefix_)->Claim("one"), absl::OkStatus()) << "it is started again";
  for (const char* other : {"two", "another, longer"}) {
    const absl::Status refused = NewStore(prefix_)->Claim(other);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(Told(refused), AllOf(HasSubstr("another data folder"),
                                     HasSubstr(absl::StrCat(prefix_, "/.espalier-owner"))));
  }
  EXPECT_EQ(NewStore(prefix_ + "-of-its-own")->Claim("two"), absl::OkStatus());
  EXPECT_TRUE(store_->List("")->empty());
}

TEST_F(S3StoreTest, RefusalsSayWhatToDo) {
  const auto put = [&](S3World world, const std::string& bucket = TestBucket()) {
    auto store = S3CheckpointStore::Create(absl::StrCat("s3://", bucket, "/", prefix_), world);
    EXPECT_TRUE(store.ok()) << store.status();
    return Write(**store, "job/object", "x");
  };
  const auto with = [](const std::string& name, const std::string& value) {
    S3World world = TestWorld();
    world.environment = [name, value](const std::string& asked) {
      return asked == name ? value : Variable(asked);
    };
    return world;
  };
  const absl::Status no_bucket = put(TestWorld(), "no-such-bucket");
  EXPECT_TRUE(absl::IsFailedPrecondition(no_bucket)) << no_bucket;
  EXPECT_THAT(Told(no_bucket), AllOf(HasSubstr("404 NoSuchBucket"),
                                     HasSubstr("create the bucket 'no-such-bucket'")));
  const absl::Status no_key = put(with("AWS_ACCESS_KEY_ID", "AKIANOBODYHASTHIS"));
  EXPECT_TRUE(absl::IsPermissionDenied(no_key)) << no_key;
  EXPECT_THAT(Told(no_key), AllOf(HasSubstr("403 InvalidAccessKeyId"),
                                  HasSubstr("the credentials of the environment"),
                                  HasSubstr("AKIANOBODYHASTHIS")));
  const absl::Status no_secret = put(with("AWS_SECRET_ACCESS_KEY", "wrong/secret"));
  EXPECT_TRUE(absl::IsPermissionDenied(no_secret)) << no_secret;
  EXPECT_THAT(Told(no_secret), AllOf(HasSubstr("SignatureDoesNotMatch"),
                                     HasSubstr("secret of the credentials of the environment"),
                                     Not(HasSubstr("wrong/secret"))));
  const absl::Status stranger = put(TestWorld("S3_STRANGER_"));
  EXPECT_TRUE(absl::IsPermissionDenied(stranger)) << stranger;
  EXPECT_THAT(Told(stranger), AllOf(HasSubstr("403 AccessDenied"), HasSubstr("need s3:PutObject")));
  // HEAD has no text; the error says as much nevertheless.
  EXPECT_THAT(Told(NewStore(prefix_, TestWorld("S3_STRANGER_"))->Open("job/x").status()),
              AllOf(HasSubstr("403 AccessDenied"), HasSubstr("need s3:GetObject")));
  const absl::Status none = put(with("AWS_ACCESS_KEY_ID", ""));
  EXPECT_TRUE(absl::IsFailedPrecondition(none)) << none;

  proxy_.Set("[{'do': 'status', 'status': 301, 'code': 'PermanentRedirect'}]");
  EXPECT_THAT(Told(put(TestWorld())), HasSubstr("AWS_REGION"));
}

TEST_F(S3StoreTest, ExpiredTokensAreRenewedOnce) {
  const auto store = NewStore(prefix_, TestWorld("S3_ROLE_"));
  const absl::Status put = Write(*store, "job/object", "x");
  ASSERT_TRUE(put.ok()) << put;
  EXPECT_EQ(proxy_.Count("POST / 200"), 1);  // STS was asked once, with the web identity
  EXPECT_EQ(Content(*store, "job/object"), "x");
  EXPECT_EQ(proxy_.Count("POST / 200"), 1);

  proxy_.Set("[{'method': 'PUT', 'do': 'status', 'status': 400, 'code': 'ExpiredToken'}]");
  const absl::Status again = Write(*store, "job/object", "y");
  EXPECT_TRUE(again.ok()) << again;
  EXPECT_EQ(proxy_.Count("POST / 200"), 1);

  proxy_.Set(
      "[{'do': 'status', 'method': 'PUT', 'status': 400, 'code': 'ExpiredToken', "
      "'count': 1000}]");
  const absl::Status expired = Write(*store, "job/object", "z");
  EXPECT_TRUE(absl::IsPermissionDenied(expired)) << expired;
  EXPECT_THAT(Told(expired),
              AllOf(HasSubstr("400 ExpiredToken"), HasSubstr("renew"), HasSubstr("web identity")));
  EXPECT_LE(proxy_.Count("PUT"), 2);
}

TEST_F(S3StoreTest, OverTlsTheServerMustBeTrusted) {
  const auto over_tls = [](const std::string& ca_file) {
    S3World world = TestWorld();
    world.http = NewCurlTransport(ca_file);
    world.environment = [](const std::string& name) {
      return name == "AWS_ENDPOINT_URL" ? Variable("S3_TLS_URL") : Variable(name);
    };
    return world;
  };
  const auto trusted = NewStore(prefix_, over_tls(Variable("S3_TLS_CA")));
  const absl::Status put = Write(*trusted, "job/object", Bytes(9 * kMiB));
  ASSERT_TRUE(put.ok()) << put;
  EXPECT_TRUE(Content(*trusted, "job/object") == Bytes(9 * kMiB));

  S3World world = over_tls("");
  auto pauses = std::make_shared<RememberedPauses>();
  world.pauses = pauses;
  const absl::Status refused = NewStore(prefix_, world)->Open("job/object").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(Told(refused), AllOf(HasSubstr("certificate"), HasSubstr("AWS_CA_BUNDLE")));
  EXPECT_EQ(pauses->slept(), absl::ZeroDuration());  // the next attempt would end so, too
}

TEST_F(S3StoreTest, NoServerIsToldAfterSomeAttempts) {
  S3World world = TestWorld();
  world.environment = [](const std::string& name) {
    return name == "AWS_ENDPOINT_URL" ? std::string("http://127.0.0.1:9") : Variable(name);
  };
  const absl::Status put = Write(*NewStore(prefix_, world), "job/object", "x");
  EXPECT_TRUE(absl::IsUnavailable(put)) << put;
  EXPECT_THAT(Told(put), AllOf(HasSubstr("127.0.0.1:9"), HasSubstr("attempts")));
}

}  // namespace
}  // namespace espalier::s3
