#include "storage/s3/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "storage/s3/answers.h"
#include "storage/s3/fake_world.h"

namespace espalier::s3 {
namespace {

using ::testing::HasSubstr;

TEST(S3UrlTest, BucketAndKey) {
  const absl::StatusOr<S3Url> url = ParseS3Url("s3://my-bucket/sets/digits.npz");
  ASSERT_TRUE(url.ok()) << url.status();
  EXPECT_EQ(url->bucket, "my-bucket");
  EXPECT_EQ(url->key, "sets/digits.npz");
  EXPECT_EQ(ParseS3Url("s3://bucket")->key, "");
  EXPECT_EQ(ParseS3Url("s3://bucket/")->key, "");
  EXPECT_EQ(ParseS3Url("s3://bucket/prefix/")->ToString(), "s3://bucket/prefix");
}

TEST(S3UrlTest, OtherTextIsRefused) {
  for (const std::string& url :
       {std::string(""), std::string("bucket/key"), std::string("https://bucket/key"),
        std::string("s3://"), std::string("s3:///key"), std::string("s3://b/key"),
        std::string("s3://user@host/key"), std::string("s3://bucket:80/key"),
        std::string("s3://-bucket/key"), std::string("s3://bucket/a//b"),
        std::string("s3://bucket/../other"), std::string("s3://bucket/a/./b"),
        std::string("s3://bucket/a\nb"), "s3://bucket/" + std::string(1025, 'x')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseS3Url(url).status())) << url;
  }
}

class EndpointTest : public ::testing::Test {
 protected:
  EndpointTest() { variables_["HOME"] = ::testing::TempDir() + "/nobody"; }

  // "scheme://host/path region" of a bucket, or the error.
  std::string Place(const std::string& bucket = "my-bucket") {
    const absl::StatusOr<Endpoint> endpoint = FindEndpoint(VariablesOf(variables_), *files_, http_);
    if (!endpoint.ok()) return endpoint.status().ToString();
    const BucketPlace place = PlaceOf(*endpoint, bucket);
    return absl::StrCat(endpoint->scheme, "://", place.host, place.path, " ", endpoint->region);
  }

  std::map<std::string, std::string> variables_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  FakeHttp http_;
};

TEST_F(EndpointTest, OfAws) {
  variables_["AWS_REGION"] = "eu-central-1";
  variables_["AWS_DEFAULT_REGION"] = "us-west-2";
  EXPECT_EQ(Place(), "https://my-bucket.s3.eu-central-1.amazonaws.com/ eu-central-1");
  // There is no certificate for such a host.
  EXPECT_EQ(Place("my.bucket"), "https://s3.eu-central-1.amazonaws.com/my.bucket/ eu-central-1");
  variables_["AWS_REGION"] = "cn-north-1";
  EXPECT_EQ(Place(), "https://my-bucket.s3.cn-north-1.amazonaws.com.cn/ cn-north-1");
  variables_["AWS_REGION"] = "evil.example/";
  EXPECT_THAT(Place(), HasSubstr("no region"));
}

TEST_F(EndpointTest, OfOnesOwnServer) {
  variables_["AWS_ENDPOINT_URL"] = "http://minio.example:9000/";
  EXPECT_EQ(Place(), "http://minio.example:9000/my-bucket/ us-east-1");
  variables_["AWS_ENDPOINT_URL_S3"] = "https://s3.example:443/base/";
  EXPECT_EQ(Place(), "https://s3.example/base/my-bucket/ us-east-1");
  EXPECT_THAT(http_.requests, ::testing::IsEmpty());
  for (const char* bad :
       {"minio:9000", "ftp://minio", "http://", "http://user@minio", "http://minio/?x=1"}) {
    variables_["AWS_ENDPOINT_URL_S3"] = bad;
    EXPECT_THAT(Place(), HasSubstr("AWS_ENDPOINT_URL")) << bad;
  }
}

TEST_F(EndpointTest, RegionOfProfileOrInstance) {
  EXPECT_THAT(Place(), HasSubstr("set AWS_REGION"));
  http_.Add("PUT http://169.254.169.254/latest/api/token", 200, "t");
  http_.Add("GET http://169.254.169.254/latest/meta-data/placement/region", 200, "us-west-1");
  EXPECT_EQ(Place(), "https://my-bucket.s3.us-west-1.amazonaws.com/ us-west-1");
  variables_["AWS_EC2_METADATA_DISABLED"] = "true";
  EXPECT_THAT(Place(), HasSubstr("set AWS_REGION"));
  variables_["AWS_CONFIG_FILE"] = ::testing::TempDir() + "/config";
  std::ofstream(variables_["AWS_CONFIG_FILE"]) << "[default]\nregion = eu-north-1\n";
  EXPECT_EQ(Place(), "https://my-bucket.s3.eu-north-1.amazonaws.com/ eu-north-1");
}

TEST(RetryTest, PausesGrowAtRandomAndEnd) {
  FakePauses pauses;
  pauses.chance = 0.5;
  const RetryPolicy policy{absl::Milliseconds(100), absl::Seconds(1), absl::Seconds(60),
                           /*attempts=*/8};
  int calls = 0;
  const absl::Status failed = Retry(policy, pauses, [&] {
    ++calls;
    return absl::UnavailableError("busy");
  });
  EXPECT_EQ(calls, 8);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("busy (8 attempts in 2s)"));
  const auto ms = [](int n) { return absl::Milliseconds(n); };
  EXPECT_THAT(pauses.slept,
              ::testing::ElementsAre(ms(50), ms(100), ms(200), ms(400), ms(500), ms(500), ms(500)));
}

TEST(RetryTest, ACancelledCallIsNotRepeated) {
  FakePauses pauses;
  pauses.chance = 1;
  const RetryPolicy policy{absl::Seconds(10), absl::Seconds(10), absl::Minutes(2), 12};
  std::atomic<bool> cancelled = false;
  int calls = 0;
  const auto busy = [&] {
    ++calls;
    cancelled = true;
    return absl::UnavailableError("busy");
  };
  EXPECT_TRUE(absl::IsUnavailable(Retry(policy, pauses, busy, &cancelled)));
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(pauses.slept.empty());
  EXPECT_TRUE(absl::IsCancelled(Retry(policy, pauses, busy, &cancelled)));
  EXPECT_EQ(calls, 1);
}

TEST(RetryTest, EndsInTimeAndAtOtherErrors) {
  FakePauses pauses;
  pauses.chance = 1;
  const RetryPolicy policy{absl::Seconds(1), absl::Seconds(10), absl::Seconds(20), 1000};
  const absl::Time begin = pauses.now;
  EXPECT_TRUE(
      absl::IsUnavailable(Retry(policy, pauses, [] { return absl::UnavailableError("busy"); })));
  EXPECT_LE(pauses.now - begin, absl::Seconds(20));
  int calls = 0;
  EXPECT_TRUE(absl::IsPermissionDenied(Retry(policy, pauses, [&] {
    ++calls;
    return absl::PermissionDeniedError("no");
  })));
  EXPECT_EQ(calls, 1);
}

TEST(AnswersTest, PagesAreRead) {
  const auto page = ParseListPage(
      "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/\">"
      "<IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b</NextContinuationToken>"
      "<Contents><Key>x &lt;1&gt;</Key><Size>5</Size></Contents>"
      "<Contents><Key>y</Key><Size>0</Size></Contents></ListBucketResult>");
  ASSERT_TRUE(page.ok()) << page.status();
  ASSERT_EQ(page->objects.size(), 2u);
  EXPECT_EQ(page->objects[0].key, "x <1>");
  EXPECT_EQ(page->objects[0].bytes, 5);
  EXPECT_EQ(page->next, "a&b");

  const auto uploads = ParseUploadsPage(
      "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>"
      "<NextUploadIdMarker>i</NextUploadIdMarker><Upload><Key>k</Key><UploadId>i</UploadId>"
      "</Upload></ListMultipartUploadsResult>");
  ASSERT_TRUE(uploads.ok()) << uploads.status();
  EXPECT_TRUE(uploads->more);
  EXPECT_EQ(uploads->next.id, "i");
  EXPECT_EQ(uploads->uploads[0].key, "k");
}

TEST(AnswersTest, HostileTextsAreErrors) {
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += "<a>";
  const std::string bomb =
      "<!DOCTYPE x [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;\">]>"
      "<ListBucketResult><Contents><Key>&b;</Key><Size>x</Size></Contents></ListBucketResult>";
  for (const std::string& text :
       {std::string(), std::string("<html>proxy</html>"), std::string(1000, '\0'), nested,
        "<ListBucketResult>" + nested, bomb,
        std::string("<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents>"
                    "</ListBucketResult>"),
        std::string("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>")}) {
    EXPECT_FALSE(ParseListPage(text).ok()) << text.substr(0, 100);
    EXPECT_FALSE(ParseUploadsPage(text).ok()) << text.substr(0, 100);
    EXPECT_FALSE(ParseUploadId(text).ok()) << text.substr(0, 100);
    EXPECT_FALSE(ParseAssumedRole(text).ok()) << text.substr(0, 100);
    EXPECT_EQ(ParseError(text).code, "") << text.substr(0, 100);
  }
}

}  // namespace
}  // namespace espalier::s3
