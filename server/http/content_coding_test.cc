#include "server/http/content_coding.h"

#include <zlib.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

std::string Gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, 0);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

HttpRequest Request(const std::string& body, const std::string& coding) {
  HttpRequest request;
  request.body = body;
  if (!coding.empty()) request.headers["content-encoding"] = coding;
  return request;
}

TEST(ContentCoding, GzipIsDecompressed) {
  const std::string large(3'000'000, 'x');
  for (const std::string& text : {std::string(), std::string("{}"), large}) {
    for (const char* coding : {"gzip", "GZIP", " x-gzip "}) {
      HttpRequest request = Request(Gzip(text), coding);
      const absl::Status status = DecodeBody(8 << 20, &request);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(request.body, text);
      EXPECT_EQ(request.headers.count("content-encoding"), 0u);
    }
  }
  HttpRequest members = Request(Gzip("a") + Gzip("b"), "gzip");
  ASSERT_TRUE(DecodeBody(100, &members).ok());
  EXPECT_EQ(members.body, "ab");
  HttpRequest plain = Request("as it is", "identity");
  ASSERT_TRUE(DecodeBody(100, &plain).ok());
  EXPECT_EQ(plain.body, "as it is");
}

TEST(ContentCoding, OtherCodingsAndBrokenBodiesAreRefused) {
  for (const char* coding : {"br", "zstd", "deflate", "gzip, gzip"}) {
    HttpRequest request = Request("x", coding);
    EXPECT_TRUE(absl::IsUnimplemented(CheckContentCoding(request))) << coding;
    const absl::Status status = DecodeBody(100, &request);
    EXPECT_TRUE(absl::IsUnimplemented(status)) << coding;
    EXPECT_THAT(status.message(), HasSubstr(coding));
  }
  const std::string whole = Gzip("some text that is long enough to be cut");
  for (const std::string& broken :
       {std::string("{}"), whole.substr(0, whole.size() / 2), whole + "x", std::string()}) {
    HttpRequest request = Request(broken, "gzip");
    EXPECT_TRUE(absl::IsInvalidArgument(DecodeBody(100, &request))) << broken.size();
  }
}

// A small body may become large.
TEST(ContentCoding, DecompressedBodiesAreBounded) {
  for (const size_t size : {size_t{200'000}, size_t{200'001}, size_t{50'000'000}}) {
    HttpRequest request = Request(Gzip(std::string(size, 'x')), "gzip");
    const absl::Status status = DecodeBody(200'000, &request);
    EXPECT_EQ(status.ok(), size == 200'000) << status;
    if (!status.ok()) {
      EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
    }
  }
}

}  // namespace
}  // namespace espalier
