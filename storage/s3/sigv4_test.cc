#include "storage/s3/sigv4.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/sha256.h"

namespace espalier::s3 {
namespace {

using ::testing::EndsWith;

// The examples of "Authenticating Requests: Using the Authorization Header" of the Amazon S3 API
// reference.
class SigV4Examples : public ::testing::Test {
 protected:
  static std::string Sign(UnsignedRequest request, const std::string& body = "") {
    const absl::Time now = absl::FromCivil(absl::CivilSecond(2013, 5, 24), absl::UTCTimeZone());
    request.payload_sha256 = Sha256Hex(body);
    request.headers.push_back({"host", "examplebucket.s3.amazonaws.com"});
    request.headers.push_back({"x-amz-content-sha256", request.payload_sha256});
    request.headers.push_back({"x-amz-date", AmzDate(now)});
    return Authorization(
        {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1", "s3"},
        request, now);
  }
};

TEST_F(SigV4Examples, GetObject) {
  EXPECT_EQ(Sign({.method = "GET", .path = "/test.txt", .headers = {{"range", "bytes=0-9"}}}),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
            "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
            "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST_F(SigV4Examples, PutObject) {
  EXPECT_EQ(PercentEncode("/test$file.text", true), "/test%24file.text");
  EXPECT_THAT(Sign({.method = "PUT",
                    .path = PercentEncode("/test$file.text", true),
                    .headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                                {"x-amz-storage-class", "REDUCED_REDUNDANCY"}}},
                   "Welcome to Amazon S3."),
              EndsWith("98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"));
}

TEST_F(SigV4Examples, GetBucketLifecycle) {
  EXPECT_THAT(Sign({.method = "GET", .query = {{"lifecycle", ""}}}),
              EndsWith("fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"));
}

TEST_F(SigV4Examples, ListObjects) {
  EXPECT_THAT(Sign({.method = "GET", .query = {{"prefix", "J"}, {"max-keys", "2"}}}),
              EndsWith("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
}

// get-vanilla-query-order-key-case of AWS's "Signature Version 4 test suite": another service, and
// a query that is not sorted.
TEST(SigV4Suite, QueryOrder) {
  const absl::Time now =
      absl::FromCivil(absl::CivilSecond(2015, 8, 30, 12, 36, 0), absl::UTCTimeZone());
  EXPECT_THAT(
      Authorization(
          {"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "us-east-1", "service"},
          {.method = "GET",
           .query = {{"Param2", "value2"}, {"Param1", "value1"}},
           .headers = {{"x-amz-date", "20150830T123600Z"}, {"host", "example.amazonaws.com"}},
           .payload_sha256 = Sha256Hex("")},
          now),
      EndsWith("b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"));
}

}  // namespace
}  // namespace espalier::s3
