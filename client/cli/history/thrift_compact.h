// Apache Thrift's compact protocol, in which Parquet keeps its metadata.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace espalier {

// Writes one struct. Fields are written in the order of their ids.
class ThriftStruct {
 public:
  void Int32(int id, int32_t value);
  void Int64(int id, int64_t value);
  void Text(int id, absl::string_view value);
  void Struct(int id, ThriftStruct value);
  void Int32List(int id, const std::vector<int32_t>& values);
  void TextList(int id, const std::vector<std::string>& values);
  void StructList(int id, std::vector<ThriftStruct> values);

  // Ends the struct. No calls may follow.
  std::string Take();

 private:
  void Field(int id, int type);
  void ListHead(int id, int type, size_t size);

  std::string bytes_;
  int last_id_ = 0;
};

// A number as ULEB128, which Parquet's run lengths use, too.
void AppendVarint(uint64_t value, std::string* out);

}  // namespace espalier
