#include "storage/npz.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>

#include "storage/dataset.h"
#include "storage/npz_writer.h"

namespace espalier {
namespace {

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::string Npy(const std::string& dictionary, const std::string& data) {
  std::string header = dictionary + "\n";
  const uint16_t length = static_cast<uint16_t>(header.size());
  return std::string("\x93NUMPY\x01\x00", 8) + Bytes(std::vector<uint16_t>{length}) + header + data;
}

std::string Describe(const std::string& descr, const std::string& shape,
                     const char* order = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
}

struct Member {
  std::string name, data;
  bool deflate = false;
  uint32_t claimed_size = 0;  // 0: the real one
};

std::string Zip(const std::vector<Member>& members) {
  auto u16 = [](int v) { return Bytes(std::vector<uint16_t>{static_cast<uint16_t>(v)}); };
  auto u32 = [](uint32_t v) { return Bytes(std::vector<uint32_t>{v}); };
  std::string file, central;
  for (const Member& m : members) {
    std::string packed = m.data;
    if (m.deflate) {
      z_stream z{};
      deflateInit2(&z, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
      packed.assign(m.data.size() + 1000, '\0');
      z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(m.data.data()));
      z.avail_in = static_cast<uInt>(m.data.size());
      z.next_out = reinterpret_cast<Bytef*>(packed.data());
      z.avail_out = static_cast<uInt>(packed.size());
      EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
      packed.resize(z.total_out);
      deflateEnd(&z);
    }
    const uint32_t crc = static_cast<uint32_t>(
        crc32_z(0, reinterpret_cast<const Bytef*>(m.data.data()), m.data.size()));
    const uint32_t size = m.claimed_size ? m.claimed_size : static_cast<uint32_t>(m.data.size());
    const std::string common = u16(0) + u16(m.deflate ? 8 : 0) + u32(0) + u32(crc) +
                               u32(static_cast<uint32_t>(packed.size())) + u32(size) +
                               u16(static_cast<int>(m.name.size())) + u16(0);
    central += u32(0x02014b50) + u16(20) + u16(20) + common + u16(0) + u16(0) + u16(0) + u32(0) +
               u32(static_cast<uint32_t>(file.size())) + m.name;
    file += u32(0x04034b50) + u16(20) + common + m.name + packed;
  }
  const uint32_t at = static_cast<uint32_t>(file.size());
  const int n = static_cast<int>(members.size());
  return file + central + u32(0x06054b50) + u16(0) + u16(0) + u16(n) + u16(n) +
         u32(static_cast<uint32_t>(central.size())) + u32(at) + u16(0);
}

void ExpectRefused(const std::string& npy, const std::string& what) {
  auto parsed = ParseNpy(npy, "column 'x'");
  ASSERT_FALSE(parsed.ok()) << what;
  EXPECT_NE(std::string(parsed.status().message()).find("column 'x'"), std::string::npos);
  EXPECT_NE(std::string(parsed.status().message()).find(what), std::string::npos)
      << parsed.status();
}

TEST(Npy, ReadsEverySupportedType) {
  auto f8 = ParseNpy(Npy(Describe("<f8", "(2, 2)"), Bytes<double>({1.5, -2, 3, 4})), "x");
  ASSERT_TRUE(f8.ok()) << f8.status();
  EXPECT_EQ(f8->type, (TensorType{DType::kF32, {2, 2}}));
  float values[4];
  std::memcpy(values, f8->data.data(), 16);
  EXPECT_EQ(values[1], -2.0f);

  auto u1 = ParseNpy(Npy(Describe("|u1", "(3,)"), std::string("\x01\xff\x00", 3)), "x");
  ASSERT_TRUE(u1.ok()) << u1.status();
  EXPECT_EQ(u1->type, (TensorType{DType::kI32, {3}}));
  int32_t ints[3];
  std::memcpy(ints, u1->data.data(), 12);
  EXPECT_EQ(ints[1], 255);

  auto big = ParseNpy(Npy(Describe(">i8", "(1,)"), std::string("\0\0\0\0\0\0\1\2", 8)), "x");
  ASSERT_TRUE(big.ok()) << big.status();
  int64_t wide;
  std::memcpy(&wide, big->data.data(), 8);
  EXPECT_EQ(wide, 258);

  auto fortran =
      ParseNpy(Npy(Describe("<i4", "(2, 3)", "True"), Bytes<int32_t>({1, 4, 2, 5, 3, 6})), "x");
  ASSERT_TRUE(fortran.ok()) << fortran.status();
  EXPECT_EQ(std::string(fortran->data.begin(), fortran->data.end()),
            Bytes<int32_t>({1, 2, 3, 4, 5, 6}));
}

TEST(Npy, RefusesInconsistentFiles) {
  ExpectRefused("not numpy at all", "no .npy array");
  ExpectRefused(Npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "12345678"),
                "never unpickled");
  ExpectRefused(Npy("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,), }", "1234"),
                "structured");
  ExpectRefused(Npy(Describe("<f4", "(4,)"), "1234"), "needs 16 bytes");
  ExpectRefused(Npy(Describe("<f4", "(4294967296, 4294967296)"), ""), "overflows");
  ExpectRefused(Npy(Describe("<f4", "(99999999999999999999,)"), ""), "no size");
  ExpectRefused(Npy(Describe("<f4", "(-1,)"), ""), "no size");
  ExpectRefused(Npy(Describe("<U5", "(1,)"), ""), "not read");
  ExpectRefused(Npy("{'shape': (1,)}", "1234"), "lacks");
  std::string huge = Npy(Describe("<f4", "(1,)"), "1234");
  huge[8] = '\xff';
  huge[9] = '\xff';
  ExpectRefused(huge, "header claims 65535 bytes");
  ExpectRefused(Npy(Describe("<u8", "(1,)"), std::string(8, '\xff')), "beyond 2^63");
}

TEST(Npz, ReadsStoredAndDeflatedMembers) {
  const std::string x = Npy(Describe("<f4", "(2, 3)"), Bytes<float>({1, 2, 3, 4, 5, 6}));
  const std::string y = Npy(Describe("<i8", "(2,)"), Bytes<int64_t>({7, 8}));
  auto arrays = ParseNpz(Zip({{"x.npy", x, true}, {"y.npy", y, false}}));
  ASSERT_TRUE(arrays.ok()) << arrays.status();
  EXPECT_EQ(arrays->at("x").type, (TensorType{DType::kF32, {2, 3}}));
  EXPECT_EQ(arrays->at("y").type, (TensorType{DType::kI64, {2}}));
}

// Member names are column names, never paths.
TEST(Npz, NamesOfMembersAreNoPaths) {
  const std::string x = Npy(Describe("<f4", "(2,)"), Bytes<float>({1, 2}));
  for (const std::string name : {"../x", "/x", "a/../../x"}) {
    const auto dataset = Dataset::FromNpz(Zip({{name + ".npy", x}}), 0);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_TRUE((*dataset)->Find(name).ok());
  }
}

TEST(Npz, RefusesInconsistentFiles) {
  const std::string x = Npy(Describe("<f4", "(2,)"), Bytes<float>({1, 2}));
  auto refuse = [](const std::string& bytes, const std::string& what) {
    auto arrays = ParseNpz(bytes, 1 << 20);
    ASSERT_FALSE(arrays.ok()) << what;
    EXPECT_NE(std::string(arrays.status().message()).find(what), std::string::npos)
        << arrays.status();
  };
  const std::string good = Zip({{"x.npy", x, true}});
  for (size_t cut = 0; cut < good.size(); ++cut) EXPECT_FALSE(ParseNpz(good.substr(0, cut)).ok());
  refuse("", "cut off");
  refuse(Zip({{"x.npy", x}, {"x.npy", x}}), "twice");
  refuse(Zip({{"x.txt", x}}), "no .npy array");
  Member bomb{"x.npy", x, true};
  bomb.claimed_size = 1 << 19;
  refuse(Zip({bomb}), "compressed");
  Member large{"x.npy", std::string(2 << 20, '\0'), true};
  refuse(Zip({large}), "all members together");
  Member longer{"x.npy", std::string(5000, 'a'), true};  // inflates to more than claimed
  longer.claimed_size = 100;
  refuse(Zip({longer}), "damaged");
  std::string flipped = good;
  flipped[40] = static_cast<char>(flipped[40] ^ 0x55);
  EXPECT_FALSE(ParseNpz(flipped).ok());
}

ByteSource SourceOf(const std::string& bytes, int64_t* most = nullptr) {
  return {static_cast<int64_t>(bytes.size()), [&bytes, most](int64_t at, int64_t n, char* to) {
            if (most != nullptr) *most = std::max(*most, n);
            std::memcpy(to, bytes.data() + at, static_cast<size_t>(n));
            return absl::OkStatus();
          }};
}

// The header's length is no multiple of the element size, so pieces end within elements.
TEST(SummarizeNpz, AgreesWithParseNpzAndReadsInPieces) {
  std::vector<double> large(400'000, 1.5);
  const std::string big_endian(3 << 20, '\x01');
  const std::string bytes = Zip({{"f8.npy", Npy(Describe("<f8", "(400000,)"), Bytes(large)), true},
                                 {"i2.npy", Npy(Describe(">i2", "(3, 524288)"), big_endian), false},
                                 {"none.npy", Npy(Describe("<f4", "(0, 4)"), ""), true},
                                 {"one.npy", Npy(Describe("|u1", "()"), "7"), false}});
  const auto arrays = ParseNpz(bytes);
  ASSERT_TRUE(arrays.ok()) << arrays.status();
  int64_t most = 0;
  const auto outlines = SummarizeNpz(SourceOf(bytes, &most));
  ASSERT_TRUE(outlines.ok()) << outlines.status();
  EXPECT_LE(most, 1 << 20);
  ASSERT_EQ(outlines->size(), arrays->size());
  for (const auto& [name, array] : *arrays) {
    EXPECT_EQ(outlines->at(name).type, array.type) << name;
    EXPECT_EQ(outlines->at(name).not_finite, -1) << name;
  }
}

TEST(SummarizeNpz, GivesTheErrorsOfParseNpz) {
  const std::string x = Npy(Describe("<f4", "(2,)"), Bytes<float>({1, 2}));
  const std::string good = Zip({{"x.npy", x, true}});
  const std::string signs = Npy(Describe("<u8", "(1,)"), std::string(8, '\xff'));
  std::vector<std::string> files = {
      "",
      Zip({{"x.npy", x}, {"x.npy", x}}),
      Zip({{"x.txt", x}}),
      Zip({{"x.npy", ""}}),
      Zip({{"x.npy", "no array", true}}),
      Zip({{"x.npy", signs, true}}),
      Zip({{"x.npy", Npy(Describe("<f4", "(3,)"), Bytes<float>({1, 2})), true}})};
  for (size_t cut = 0; cut < good.size(); ++cut) files.push_back(good.substr(0, cut));
  for (const std::string& file : files) {
    const absl::Status parsed = ParseNpz(file).status(),
                       outlined = SummarizeNpz(SourceOf(file)).status();
    EXPECT_FALSE(parsed.ok());
    EXPECT_EQ(outlined, parsed);
  }
  for (size_t at = 0; at < good.size(); ++at) {  // of two errors either may be reported
    std::string flipped = good;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x55);
    EXPECT_EQ(SummarizeNpz(SourceOf(flipped)).ok(), ParseNpz(flipped).ok()) << at;
  }
}

TEST(SummarizeNpz, ReadsAnArrayThatIsInNoArchive) {
  const std::string x = Npy(Describe("<f4", "(300000, 2)"), Bytes(std::vector<float>(600'000, 3)));
  const auto arrays = ParseNpz(x, kMaxDatasetBytes, "x");
  ASSERT_TRUE(arrays.ok()) << arrays.status();
  int64_t most = 0;
  const auto outlines = SummarizeNpz(SourceOf(x, &most), kMaxDatasetBytes, "x");
  ASSERT_TRUE(outlines.ok()) << outlines.status();
  EXPECT_LE(most, 1 << 20);
  for (const TensorType& type : {arrays->at("x").type, outlines->at("x").type}) {
    EXPECT_EQ(type, (TensorType{DType::kF32, {300'000, 2}}));
  }
  const std::string column = Dataset::NpyColumn("/data/rows.of.images.npy");
  EXPECT_EQ(column, "rows.of.images");
  const auto dataset = Dataset::FromNpz(x, 0, column);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->examples(), 300'000);
  EXPECT_TRUE((*dataset)->Find(column).ok());
  const std::string small = Npy(Describe("<f4", "(2,)"), Bytes<float>({1, 2}));
  for (size_t cut = 6; cut < small.size(); ++cut) {
    const std::string part = small.substr(0, cut);
    const absl::Status parsed = ParseNpz(part).status();
    EXPECT_FALSE(parsed.ok()) << cut;
    EXPECT_EQ(SummarizeNpz(SourceOf(part)).status(), parsed);
  }
}

// Bytes become 4 bytes each: the limit must count converted values.
TEST(SummarizeNpz, LimitCountsConvertedValues) {
  const std::string x = Npy(Describe("|u1", "(300000,)"), std::string(300'000, '\x01'));
  const std::string bytes = Zip({{"x.npy", x, true}, {"y.npy", x, true}});
  for (const int64_t limit : {1'000'000, 2'000'000, 3'000'000}) {
    for (const absl::Status& status :
         {ParseNpz(bytes, limit).status(), SummarizeNpz(SourceOf(bytes), limit).status()}) {
      EXPECT_EQ(status.ok(), limit == 3'000'000) << status;
      if (status.ok()) continue;
      EXPECT_NE(std::string(status.message()).find("1200000 bytes in memory"), std::string::npos);
    }
  }
}

TEST(SummarizeNpz, FindsWhatIsNotFiniteInEitherOrder) {
  const auto check = [](const char* order, const std::vector<float>& values,
                        const std::string& where) {
    const std::string bytes =
        Zip({{"x.npy", Npy(Describe("<f4", "(2, 3)", order), Bytes(values))}});
    const auto outline = Dataset::SummaryOfNpz(SourceOf(bytes), 0);
    const auto whole = Dataset::FromNpz(bytes, 0);
    ASSERT_TRUE(outline.ok() && whole.ok());
    EXPECT_EQ((*outline)->training_examples(), 2);
    const absl::Status found = (*outline)->CheckFinite(**(*outline)->Find("x"));
    EXPECT_EQ(found, (*whole)->CheckFinite(**(*whole)->Find("x")));
    EXPECT_NE(std::string(found.message()).find(where), std::string::npos) << found;
  };
  check("False", {1, 2, 3, 4, NAN, 6}, "example 1, element 1 is NaN");
  check("True", {1, 2, 3, INFINITY, 5, 6}, "example 1, element 1 is infinite");
}

TEST(SummarizeNpz, FindsIntegersOutOfRangeInEitherOrder) {
  const auto check = [](const char* order, const std::vector<int64_t>& values,
                        const IntegerRange& range, const std::string& where) {
    const std::string bytes =
        Zip({{"x.npy", Npy(Describe("<i8", "(2, 3)", order), Bytes(values))}});
    const auto outline = Dataset::SummaryOfNpz(SourceOf(bytes), 0);
    const auto whole = Dataset::FromNpz(bytes, 0);
    ASSERT_TRUE(outline.ok() && whole.ok());
    const absl::Status found = (*outline)->CheckRange(**(*outline)->Find("x"), range);
    EXPECT_EQ(found, (*whole)->CheckRange(**(*whole)->Find("x"), range));
    EXPECT_EQ(found.ok(), where.empty()) << found;
    EXPECT_NE(std::string(found.message()).find(where), std::string::npos) << found;
  };
  check("False", {0, 1, 2, 3, 9, 3}, {0, 8}, "example 1, element 1 is 9; accepted are 0 to 8");
  check("True", {0, 1, 2, 3, 9, 3}, {0, 8}, "example 0, element 2 is 9");
  check("False", {0, 1, 2, 3, 9, 3}, {0, 9}, "");
  check("False", {-100, 1, -100, 3, 9, 3}, {0, 9, -100}, "");
  check("False", {-100, 1, -1, 3, 9, 3}, {0, 9, -100}, "example 0, element 2 is -1");
  check("False", {255, 1, 254, 3, 9, 3}, {0, 9, 255}, "example 0, element 2 is 254");
}

TEST(IntegerExtremes, FindWhatASearchFinds) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    const auto draw = [&](int64_t n) { return static_cast<int64_t>(random() % n) - n / 2; };
    IntegerExtremes extremes;
    std::vector<int64_t> values(random() % 6);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = draw(8);
      extremes.Add(values[i], static_cast<int64_t>(i));
    }
    const int64_t low = draw(8), high = low + static_cast<int64_t>(random() % 6);
    const std::optional<int64_t> exempt =
        random() % 2 == 0 ? std::nullopt : std::optional<int64_t>(draw(8));
    const auto is_outside = [&](int64_t value) {
      return (value < low || value > high) && value != exempt;
    };
    const auto found = extremes.Outside(low, high, exempt);
    ASSERT_EQ(found.has_value(), std::any_of(values.begin(), values.end(), is_outside));
    if (!found.has_value()) continue;
    EXPECT_TRUE(is_outside(found->value));
    const auto first = std::find(values.begin(), values.end(), found->value);
    EXPECT_EQ(found->index, first - values.begin());
  }
}

TEST(WriteNpz, RoundTrips) {
  std::map<std::string, Array> arrays;
  arrays["tokens"] = {{DType::kI32, {2, 3}}, {}};
  const std::string numbers = Bytes<int32_t>({1, -100, 3, 4, 5, 1 << 30});
  arrays["tokens"].data.assign(numbers.begin(), numbers.end());
  arrays["mask"] = {{DType::kBool, {2}}, {1, 0}};
  arrays["x"] = {{DType::kF32, {0, 4}}, {}};
  const auto bytes = WriteNpz(arrays);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const auto read = ParseNpz(*bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), arrays.size());
  for (const auto& [name, array] : arrays) {
    EXPECT_EQ(read->at(name).type, array.type) << name;
    EXPECT_EQ(read->at(name).data, array.data) << name;
  }
  arrays["x"].data.resize(3);
  EXPECT_FALSE(WriteNpz(arrays).ok());
  arrays["x"] = {{DType::kBF16, {1}}, {0, 0}};
  EXPECT_FALSE(WriteNpz(arrays).ok());
}

TEST(DatasetNpz, ColumnsMustAgreeAndFloatsBeFinite) {
  const std::string x = Npy(Describe("<f4", "(2, 2)"), Bytes<float>({1, 2, 3, NAN}));
  const std::string y = Npy(Describe("<i4", "(3,)"), Bytes<int32_t>({1, 2, 3}));
  EXPECT_FALSE(Dataset::FromNpz(Zip({{"x.npy", x}, {"y.npy", y}}), 0).ok());
  auto dataset = Dataset::FromNpz(Zip({{"x.npy", x}}), 0);
  ASSERT_TRUE(dataset.ok());
  const absl::Status finite = (*dataset)->CheckFinite(**(*dataset)->Find("x"));
  EXPECT_NE(std::string(finite.message()).find("column 'x': example 1, element 1 is NaN"),
            std::string::npos)
      << finite;
  auto missing = (*dataset)->Find("labels");
  EXPECT_NE(std::string(missing.status().message()).find("it has 'x'"), std::string::npos);
}

}  // namespace
}  // namespace espalier
