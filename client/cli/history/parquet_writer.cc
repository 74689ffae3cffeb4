#include "client/cli/history/parquet_writer.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/version.h"

namespace espalier {
namespace {

constexpr char kMagic[] = "PAR1";
// A group's rows are read as a whole, and its columns are gathered in memory.
constexpr int64_t kGroupRows = 100'000, kGroupBytes = 64 << 20;

// Numbers of parquet.thrift.
enum { kByInt64 = 2, kByDouble = 5, kByByteArray = 6 };                  // Type
enum { kAsUtf8 = 0, kAsList = 3, kAsTimestampMillis = 9 };               // ConvertedType
enum { kFieldRequired = 0, kFieldOptional = 1, kFieldRepeated = 2 };     // FieldRepetitionType
enum { kEncodedPlain = 0, kEncodedRle = 3, kEncodedRleDictionary = 8 };  // Encoding
enum { kDataPage = 0, kDictionaryPage = 2 };                             // PageType

static_assert(std::endian::native == std::endian::little, "numbers are written as they are");

template <typename T>
void AppendPlain(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

int PhysicalType(ParquetColumn::Type type) {
  return type == ParquetColumn::kText     ? kByByteArray
         : type == ParquetColumn::kDouble ? kByDouble
                                          : kByInt64;
}

// Runs of equal numbers of at most 8 * `width` bits (the RLE of Parquet's hybrid encoding).
template <typename T>
std::string RunLengths(const std::vector<T>& values, int width) {
  std::string out;
  for (size_t at = 0; at < values.size();) {
    size_t end = at + 1;
    while (end < values.size() && values[end] == values[at]) ++end;
    AppendVarint((end - at) << 1, &out);
    for (int i = 0; i < width; ++i) {
      out += static_cast<char>(static_cast<uint64_t>(values[at]) >> 8 * i & 0xff);
    }
    at = end;
  }
  return out;
}

std::string Levels(const std::vector<uint8_t>& levels) {
  const std::string runs = RunLengths(levels, 1);
  std::string out;
  AppendPlain(static_cast<uint32_t>(runs.size()), &out);
  return out + runs;
}

std::string Page(int type, int header_id, ThriftStruct header, const std::string& body) {
  ThriftStruct page;
  page.Int32(1, type);
  page.Int32(2, static_cast<int32_t>(body.size()));
  page.Int32(3, static_cast<int32_t>(body.size()));
  page.Struct(header_id, std::move(header));
  return page.Take() + body;
}

ThriftStruct Group(const std::string& name, int repetition, int children) {
  ThriftStruct group;
  if (repetition >= 0) group.Int32(3, repetition);
  group.Text(4, name);
  group.Int32(5, children);
  return group;
}

ThriftStruct Leaf(const std::string& name, ParquetColumn::Type type, int repetition) {
  ThriftStruct leaf;
  leaf.Int32(1, PhysicalType(type));
  leaf.Int32(3, repetition);
  leaf.Text(4, name);
  if (type == ParquetColumn::kText) leaf.Int32(6, kAsUtf8);
  if (type == ParquetColumn::kUnixMs) leaf.Int32(6, kAsTimestampMillis);
  return leaf;
}

// The column as elements of the schema, in depth-first order.
std::vector<ThriftStruct> SchemaOf(const ParquetColumn& column) {
  if (column.shape != ParquetColumn::kList) {
    return {Leaf(column.name, column.type,
                 column.shape == ParquetColumn::kRequired ? kFieldRequired : kFieldOptional)};
  }
  ThriftStruct list;
  list.Int32(3, kFieldOptional);
  list.Text(4, column.name);
  list.Int32(5, 1);
  list.Int32(6, kAsList);
  return {std::move(list), Group("list", kFieldRepeated, 1),
          Leaf("element", column.type, kFieldRequired)};
}

}  // namespace

class ParquetWriter::Chunk {
 public:
  explicit Chunk(const ParquetColumn& column) : column_(column) {}

  // The values of a row, which are then added.
  void BeginRow(size_t count) {
    if (given_) abort();
    given_ = true;
    if (column_.shape == ParquetColumn::kRequired) return;
    if (column_.shape == ParquetColumn::kOptional) {
      definitions_.push_back(1);
      return;
    }
    for (size_t i = 0; i < std::max<size_t>(count, 1); ++i) {
      definitions_.push_back(count == 0 ? 1 : 2);
      repetitions_.push_back(i == 0 ? 0 : 1);
    }
  }
  template <typename T>
  void Add(T value) {
    ++values_;
    AppendPlain(value, &plain_);
  }
  void AddText(absl::string_view text) {
    ++values_;
    const auto [place, is_new] =
        dictionary_.try_emplace(std::string(text), static_cast<uint32_t>(dictionary_.size()));
    if (is_new) {
      AppendPlain(static_cast<uint32_t>(text.size()), &plain_);
      plain_.append(text.data(), text.size());
    }
    places_.push_back(place->second);
  }
  void EndRow() {
    if (!given_) {
      if (column_.shape == ParquetColumn::kRequired) abort();
      definitions_.push_back(0);
      if (column_.shape == ParquetColumn::kList) repetitions_.push_back(0);
    }
    given_ = false;
  }
  int64_t bytes() const {
    return static_cast<int64_t>(plain_.size() + places_.size() * sizeof(uint32_t) +
                                definitions_.size() + repetitions_.size());
  }

  // Its pages; *metadata becomes its ColumnChunk, for pages that begin at `offset` of the file.
  std::string Pages(int64_t offset, ThriftStruct* metadata) const {
    const bool texts = column_.type == ParquetColumn::kText;
    std::string pages;
    if (texts) {
      ThriftStruct header;
      header.Int32(1, static_cast<int32_t>(dictionary_.size()));
      header.Int32(2, kEncodedPlain);
      pages = Page(kDictionaryPage, 7, std::move(header), plain_);
    }
    const auto data_offset = offset + static_cast<int64_t>(pages.size());
    const int64_t entries =
        definitions_.empty() ? values_ : static_cast<int64_t>(definitions_.size());
    ThriftStruct header;
    header.Int32(1, static_cast<int32_t>(entries));
    header.Int32(2, texts ? kEncodedRleDictionary : kEncodedPlain);
    header.Int32(3, kEncodedRle);
    header.Int32(4, kEncodedRle);
    std::string body;
    if (!repetitions_.empty()) body += Levels(repetitions_);
    if (!definitions_.empty()) body += Levels(definitions_);
    if (texts) {
      const int bits = std::max(1, static_cast<int>(std::bit_width(dictionary_.size())));
      body += static_cast<char>(bits);
      body += RunLengths(places_, (bits + 7) / 8);
    } else {
      body += plain_;
    }
    pages += Page(kDataPage, 5, std::move(header), body);

    ThriftStruct column;
    column.Int32(1, PhysicalType(column_.type));
    column.Int32List(2,
                     texts ? std::vector<int32_t>{kEncodedPlain, kEncodedRle, kEncodedRleDictionary}
                           : std::vector<int32_t>{kEncodedPlain, kEncodedRle});
    column.TextList(3, column_.shape == ParquetColumn::kList
                           ? std::vector<std::string>{column_.name, "list", "element"}
                           : std::vector<std::string>{column_.name});
    column.Int32(4, 0);  // uncompressed
    column.Int64(5, entries);
    column.Int64(6, static_cast<int64_t>(pages.size()));
    column.Int64(7, static_cast<int64_t>(pages.size()));
    column.Int64(9, data_offset);
    if (texts) column.Int64(11, offset);
    metadata->Int64(2, offset);
    metadata->Struct(3, std::move(column));
    return pages;
  }

 private:
  const ParquetColumn& column_;
  bool given_ = false;  // in this row
  int64_t values_ = 0;
  std::string plain_;  // values, or the dictionary's texts
  std::map<std::string, uint32_t> dictionary_;
  std::vector<uint32_t> places_;  // in the dictionary
  // Of kOptional: 1 for a value. Of kList: 0 absent, 1 empty, 2 for an element.
  std::vector<uint8_t> definitions_;
  std::vector<uint8_t> repetitions_;  // of kList: 0 begins a row
};

ParquetWriter::ParquetWriter(std::unique_ptr<OutputFile> out, std::vector<ParquetColumn> columns)
    : out_(std::move(out)), columns_(std::move(columns)) {
  for (const ParquetColumn& column : columns_) chunks_.emplace_back(column);
}
ParquetWriter::~ParquetWriter() = default;

void ParquetWriter::Text(size_t column, absl::string_view value) {
  chunks_[column].BeginRow(1);
  chunks_[column].AddText(value);
}
void ParquetWriter::Int64(size_t column, int64_t value) {
  chunks_[column].BeginRow(1);
  chunks_[column].Add(value);
}
void ParquetWriter::Double(size_t column, double value) {
  chunks_[column].BeginRow(1);
  chunks_[column].Add(value);
}
void ParquetWriter::Int64List(size_t column, const std::vector<int64_t>& values) {
  chunks_[column].BeginRow(values.size());
  for (const int64_t value : values) chunks_[column].Add(value);
}
void ParquetWriter::DoubleList(size_t column, const std::vector<double>& values) {
  chunks_[column].BeginRow(values.size());
  for (const double value : values) chunks_[column].Add(value);
}

absl::Status ParquetWriter::EndRow() {
  ++rows_;
  ++group_rows_;
  int64_t bytes = 0;
  for (Chunk& chunk : chunks_) {
    chunk.EndRow();
    bytes += chunk.bytes();
  }
  return group_rows_ < kGroupRows && bytes < kGroupBytes ? absl::OkStatus() : WriteGroup();
}

absl::Status ParquetWriter::WriteGroup() {
  if (!std::exchange(begun_, true)) {
    if (absl::Status s = out_->Write(kMagic); !s.ok()) return s;
  }
  if (group_rows_ == 0) return absl::OkStatus();
  const int64_t begin = out_->bytes();
  std::vector<ThriftStruct> columns;
  for (const Chunk& chunk : chunks_) {
    if (absl::Status s = out_->Write(chunk.Pages(out_->bytes(), &columns.emplace_back()));
        !s.ok()) {
      return s;
    }
  }
  ThriftStruct group;
  group.StructList(1, std::move(columns));
  group.Int64(2, out_->bytes() - begin);
  group.Int64(3, group_rows_);
  groups_.push_back(std::move(group));
  group_rows_ = 0;
  chunks_.clear();
  for (const ParquetColumn& column : columns_) chunks_.emplace_back(column);
  return absl::OkStatus();
}

ThriftStruct ParquetWriter::Metadata() {
  std::vector<ThriftStruct> schema;
  schema.push_back(Group("history", -1, static_cast<int>(columns_.size())));
  for (const ParquetColumn& column : columns_) {
    for (ThriftStruct& element : SchemaOf(column)) schema.push_back(std::move(element));
  }
  ThriftStruct metadata;
  metadata.Int32(1, 1);  // version of the format
  metadata.StructList(2, std::move(schema));
  metadata.Int64(3, rows_);
  metadata.StructList(4, std::move(groups_));
  metadata.Text(6, absl::StrCat("espalier version ", kEspalierVersion));
  return metadata;
}

absl::Status ParquetWriter::Finish() {
  if (absl::Status s = WriteGroup(); !s.ok()) return s;
  std::string end = Metadata().Take();
  const auto size = static_cast<uint32_t>(end.size());
  AppendPlain(size, &end);
  if (absl::Status s = out_->Write(end + kMagic); !s.ok()) return s;
  return out_->Finish();
}

}  // namespace espalier
