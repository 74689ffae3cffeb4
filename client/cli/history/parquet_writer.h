// Parquet files: columns of text, integers and doubles, and of lists of them. Uncompressed; texts
// by dictionary, numbers plain.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/cli/history/output_file.h"
#include "client/cli/history/thrift_compact.h"

namespace espalier {

struct ParquetColumn {
  enum Type { kText, kInt64, kDouble, kUnixMs };
  enum Shape { kRequired, kOptional, kList };  // of kList: absent, or any number of elements
  std::string name;
  Type type = kText;
  Shape shape = kRequired;
};

class ParquetWriter {
 public:
  ParquetWriter(std::unique_ptr<OutputFile> out, std::vector<ParquetColumn> columns);
  ~ParquetWriter();

  // Values of the row that is written now: once for each required column, at most once for others.
  // REQUIRES: of the column's type; lists for kList.
  void Text(size_t column, absl::string_view value);
  void Int64(size_t column, int64_t value);
  void Double(size_t column, double value);
  void Int64List(size_t column, const std::vector<int64_t>& values);
  void DoubleList(size_t column, const std::vector<double>& values);
  // Columns without a value are null. Rows are written in groups.
  absl::Status EndRow();
  absl::Status Finish();

 private:
  class Chunk;  // a column of the group that is gathered
  absl::Status WriteGroup();
  ThriftStruct Metadata();

  std::unique_ptr<OutputFile> out_;
  const std::vector<ParquetColumn> columns_;
  std::vector<Chunk> chunks_;
  std::vector<ThriftStruct> groups_;
  int64_t rows_ = 0, group_rows_ = 0;
  bool begun_ = false;
};

}  // namespace espalier
