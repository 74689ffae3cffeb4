#include "storage/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/file_system.h"

namespace espalier {
namespace {

class SafetensorsTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) { return JoinPath(testing::TempDir(), name); }
  std::string WriteRaw(const std::string& header, const std::string& data, uint64_t claimed = 0) {
    const std::string path = Path("raw.safetensors");
    std::ofstream out(path, std::ios::binary);
    const uint64_t length = claimed != 0 ? claimed : header.size();
    out.write(reinterpret_cast<const char*>(&length), 8);
    out << header << data;
    return path;
  }
  void ExpectRefused(const std::string& header, const std::string& data, const std::string& what,
                     uint64_t claimed = 0) {
    auto file = SafetensorsFile::Open(*files_, WriteRaw(header, data, claimed));
    ASSERT_FALSE(file.ok()) << what;
    EXPECT_NE(std::string(file.status().message()).find(what), std::string::npos) << file.status();
  }

  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
};

TEST_F(SafetensorsTest, RoundTrips) {
  const std::string path = Path("good.safetensors");
  SafetensorsWriter writer(*files_, path);
  ASSERT_TRUE(writer
                  .Begin({{"b \"quoted\"", {DType::kF32, {2, 1}}}, {"a", {DType::kI64, {}}}},
                         {{"key", "value"}})
                  .ok());
  const float floats[2] = {1.5f, -2};
  const int64_t scalar = 42;
  ASSERT_TRUE(writer.Append(floats, 8).ok());
  ASSERT_TRUE(writer.Append(&scalar, 8).ok());
  auto written = writer.Finish();
  ASSERT_TRUE(written.ok()) << written.status();
  const std::string content = *ReadWholeFile(*files_, path, 1 << 20);
  Sha256 hash;
  hash.Add(content.data(), static_cast<int64_t>(content.size()));
  EXPECT_EQ(written->sha256, hash.Hex());
  auto file = SafetensorsFile::Open(*files_, path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->metadata().at("key"), "value");
  const SafetensorsEntry& b = (*file)->tensors().at("b \"quoted\"");
  EXPECT_EQ(b.type, (TensorType{DType::kF32, {2, 1}}));
  float second = 0;
  ASSERT_TRUE((*file)->Read(b, 4, 4, &second).ok());
  EXPECT_EQ(second, -2);
  EXPECT_FALSE((*file)->Read(b, 4, 8, &second).ok());
}

TEST_F(SafetensorsTest, RefusesInconsistentFiles) {
  const std::string data(8, 'x');
  auto tensor = [](const std::string& shape, const std::string& offsets) {
    return "{\"dtype\":\"F32\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
  };
  const std::string a = "\"a\":" + tensor("[1]", "[0,4]");
  const std::string b = "\"b\":" + tensor("[1]", "[4,8]");
  ASSERT_TRUE(SafetensorsFile::Open(*files_, WriteRaw("{" + a + "," + b + "}", data)).ok());
  ExpectRefused("{" + a + "," + b + "}", data, "header claims", uint64_t{1} << 60);
  ExpectRefused("[1,2]", data, "no JSON object");
  ExpectRefused("{" + a, data, "not valid JSON");
  ExpectRefused("{" + a + "," + a + "}", data.substr(4), "twice");
  ExpectRefused("{" + a + ",\"b\":" + tensor("[1]", "[0,4]") + "}", data, "no gaps or overlaps");
  ExpectRefused("{" + a + "}", data, "after the last tensor");
  ExpectRefused("{\"b\":" + tensor("[1]", "[4,8]") + "}", data, "no gaps or overlaps");
  ExpectRefused("{\"a\":" + tensor("[2]", "[0,4]") + "}", data, "its shape takes 8");
  ExpectRefused("{\"a\":" + tensor("[1]", "[8,4]") + "}", data, "span");
  ExpectRefused("{\"a\":" + tensor("[4611686018427387904,4611686018427387904]", "[0,8]") + "}",
                data, "overflows");
  ExpectRefused("{\"a\":" + tensor("[-1]", "[0,8]") + "}", data, "sizes");
  ExpectRefused("{\"a\":" + tensor("[1]", "[0,400]") + "}", data, "within the 8 bytes");
  ExpectRefused("{\"a\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}", data,
                "unknown dtype 'F31'");
  ExpectRefused("{\"__metadata__\":{\"k\":3}}", "", "strings to strings");
  ExpectRefused("{\"a\":" + std::string(5000, '[') + std::string(5000, ']') + "}", "",
                "nests deeper");
}

TEST_F(SafetensorsTest, AHeaderOfMoreThan100MegabytesIsRefusedUnread) {
  constexpr uint64_t kHeader = (100 << 20) + 1;
  const std::string path = WriteRaw("", "", kHeader);
  std::filesystem::resize_file(path, 8 + kHeader);
  const auto file = SafetensorsFile::Open(*files_, path);
  EXPECT_NE(std::string(file.status().message()).find("at most 104857600"), std::string::npos)
      << file.status();
}

TEST_F(SafetensorsTest, EmptyTensorsLieBetweenOthersAndAtTheEnd) {
  const std::string path = WriteRaw(R"({"a":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},)"
                                    R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                    R"("c":{"dtype":"F32","shape":[3,0],"data_offsets":[4,4]}})",
                                    "1234");
  const auto file = SafetensorsFile::Open(*files_, path);
  ASSERT_TRUE(file.ok()) << file.status();
  for (const char* name : {"a", "c"}) {
    const SafetensorsEntry& empty = (*file)->tensors().at(name);
    EXPECT_EQ(empty.bytes, 0);
    EXPECT_TRUE((*file)->Read(empty, 0, 0, nullptr).ok());
    char one = 0;
    EXPECT_FALSE((*file)->Read(empty, 0, 1, &one).ok());
  }
}

TEST_F(SafetensorsTest, OpeningAFifoDoesNotBlock) {
  const std::string path = Path("fifo");
  const std::string command = "rm -f '" + path + "'; mkfifo '" + path + "'";
  ASSERT_EQ(system(command.c_str()), 0);
  EXPECT_EQ(SafetensorsFile::Open(*files_, path).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier
