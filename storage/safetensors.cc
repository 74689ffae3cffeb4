#include "storage/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json/bounded_json.h"
#include "storage/atomic_file.h"

namespace espalier {
namespace {

using nlohmann::json;

constexpr int64_t kMaxSafetensorsHeader = 100 << 20;  // as in the reference implementation
constexpr size_t kMaxValues = 1 << 23;                // in a header: a million tensors
constexpr size_t kMaxSafetensorsRank = 16;

struct FileType {
  const char* name;
  DType dtype;
  int bytes;
};
constexpr FileType kTypes[] = {
    {"F32", DType::kF32, 4},     {"BF16", DType::kBF16, 2},       {"F16", DType::kF16, 2},
    {"I32", DType::kI32, 4},     {"I64", DType::kI64, 8},         {"BOOL", DType::kBool, 1},
    {"F64", DType::kInvalid, 8}, {"I16", DType::kInvalid, 2},     {"I8", DType::kI8, 1},
    {"U8", DType::kU8, 1},       {"U16", DType::kInvalid, 2},     {"U32", DType::kInvalid, 4},
    {"U64", DType::kInvalid, 8}, {"F8_E4M3", DType::kInvalid, 1}, {"F8_E5M2", DType::kInvalid, 1}};

absl::Status BadSafetensors(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("'", path, "': ", what));
}

absl::Status ParseTensor(const std::string& path, const std::string& name, const json& value,
                         int64_t data_start, int64_t data_bytes, SafetensorsEntry* entry) {
  const std::string place = absl::StrCat("tensor '", name, "': ");
  if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string() ||
      !value.contains("shape") || !value["shape"].is_array() || !value.contains("data_offsets") ||
      !value["data_offsets"].is_array() || value["data_offsets"].size() != 2) {
    return BadSafetensors(path, place + "it must have dtype, shape and data_offsets [begin, end]");
  }
  entry->dtype_name = value["dtype"].get<std::string>();
  const FileType* type = nullptr;
  for (const FileType& t : kTypes) {
    if (entry->dtype_name == t.name) type = &t;
  }
  if (type == nullptr)
    return BadSafetensors(path, absl::StrCat(place, "unknown dtype '", entry->dtype_name, "'"));
  entry->type.dtype = type->dtype;
  int64_t bytes = type->bytes;
  if (value["shape"].size() > kMaxSafetensorsRank)
    return BadSafetensors(path, place + "too many dimensions");
  for (const json& extent : value["shape"]) {
    if (!extent.is_number_integer() || extent.get<int64_t>() < 0 ||
        (extent.is_number_unsigned() && extent.get<uint64_t>() > uint64_t{1} << 62)) {
      return BadSafetensors(path, place + "its shape must hold sizes");
    }
    entry->type.dims.push_back(extent.get<int64_t>());
    if (__builtin_mul_overflow(bytes, entry->type.dims.back(), &bytes)) {
      return BadSafetensors(path, place + "its size overflows");
    }
  }
  for (const json& offset : value["data_offsets"]) {
    if (!offset.is_number_unsigned() ||
        offset.get<uint64_t>() > static_cast<uint64_t>(data_bytes)) {
      return BadSafetensors(path, absl::StrCat(place, "data_offsets must lie within the ",
                                               data_bytes, " bytes of data"));
    }
  }
  const int64_t begin = value["data_offsets"][0].get<int64_t>();
  const int64_t end = value["data_offsets"][1].get<int64_t>();
  if (begin > end || end - begin != bytes) {
    return BadSafetensors(path, absl::StrCat(place, "data_offsets span ", end - begin,
                                             " bytes, its shape takes ", bytes));
  }
  entry->offset = data_start + begin;
  entry->bytes = bytes;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(FileSystem& files,
                                                                       const std::string& path) {
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = files.Open(path);
  if (!file.ok()) return file.status();
  return Open(*std::move(file), path);
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(
    std::unique_ptr<ReadableFile> file, const std::string& path) {
  const int64_t size = file->size();
  if (size < 8) return BadSafetensors(path, "it is too short for a safetensors file");
  uint64_t header_bytes = 0;
  if (absl::Status s = file->Read(0, 8, &header_bytes); !s.ok()) return s;
  if (header_bytes > static_cast<uint64_t>(std::min(kMaxSafetensorsHeader, size - 8))) {
    return BadSafetensors(
        path, absl::StrCat("its header claims ", header_bytes, " bytes; the file has ", size - 8,
                           " more, and at most ", kMaxSafetensorsHeader, " are accepted"));
  }
  std::string text(header_bytes, '\0');
  if (absl::Status s = file->Read(8, static_cast<int64_t>(header_bytes), text.data()); !s.ok()) {
    return s;
  }
  std::string twice;
  const absl::StatusOr<json> parsed =
      ParseBoundedJson<json>(text, {.depth = 4, .values = kMaxValues}, &twice);
  if (!parsed.ok())
    return BadSafetensors(path, absl::StrCat("its header ", parsed.status().message()));
  const json& header = *parsed;
  if (!header.is_object()) return BadSafetensors(path, "its header is no JSON object");
  // A JSON object would drop one of two equal names.
  if (!twice.empty()) return BadSafetensors(path, absl::StrCat("'", twice, "' is there twice"));

  auto result = std::make_unique<SafetensorsFile>();
  result->path_ = path;
  const int64_t data_start = 8 + static_cast<int64_t>(header_bytes);
  const int64_t data_bytes = size - data_start;
  std::vector<std::pair<int64_t, const std::string*>> order;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      if (!value.is_object())
        return BadSafetensors(path, "__metadata__ must map strings to strings");
      for (const auto& [key, entry] : value.items()) {
        if (!entry.is_string())
          return BadSafetensors(path, "__metadata__ must map strings to strings");
        result->metadata_[key] = entry.get<std::string>();
      }
      continue;
    }
    SafetensorsEntry entry;
    absl::Status s = ParseTensor(path, name, value, data_start, data_bytes, &entry);
    if (!s.ok()) return s;
    auto added = result->tensors_.emplace(name, std::move(entry)).first;
    order.emplace_back(added->second.offset, &added->first);
  }
  // Empty tensors may share an offset with the next one: shorter first.
  std::sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    return std::make_pair(a.first, result->tensors_[*a.second].bytes) <
           std::make_pair(b.first, result->tensors_[*b.second].bytes);
  });
  int64_t expected = data_start;
  for (const auto& [offset, name] : order) {
    if (offset != expected) {
      return BadSafetensors(path,
                            absl::StrCat("tensor '", *name, "' begins at ", offset - data_start,
                                         ", the one before ends at ", expected - data_start,
                                         ": no gaps or overlaps are accepted"));
    }
    expected += result->tensors_[*name].bytes;
  }
  if (expected != size) {
    return BadSafetensors(path, absl::StrCat(size - expected, " bytes after the last tensor"));
  }
  result->file_ = std::move(file);
  return result;
}

absl::Status SafetensorsFile::Read(const SafetensorsEntry& entry, int64_t offset, int64_t bytes,
                                   void* out) const {
  if (offset < 0 || bytes < 0 || offset > entry.bytes || bytes > entry.bytes - offset) {
    return absl::OutOfRangeError(absl::StrCat("'", path_, "': read beyond a tensor"));
  }
  return file_->Read(entry.offset + offset, bytes, out);
}

SafetensorsWriter::SafetensorsWriter(FileSystem& files, std::string path)
    : files_(&files), path_(std::move(path)) {}

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<CheckpointStore::Upload> upload,
                                     std::string name)
    : files_(nullptr), path_(std::move(name)), file_(std::move(upload)) {}

SafetensorsWriter::~SafetensorsWriter() = default;

absl::Status SafetensorsWriter::Begin(const std::vector<Tensor>& tensors,
                                      const std::map<std::string, std::string>& metadata) {
  // Written by hand: keeps tensors in data order, which nlohmann::json's sorted objects lose.
  std::string header = "{";
  if (!metadata.empty())
    absl::StrAppend(&header, "\"__metadata__\":",
                    json(metadata).dump(-1, ' ', false, json::error_handler_t::replace));
  for (const Tensor& tensor : tensors) {
    const char* type = nullptr;
    for (const FileType& t : kTypes) {
      if (t.dtype == tensor.type.dtype) type = t.name;
      if (type != nullptr) break;
    }
    if (type == nullptr || tensor.type.dtype == DType::kInvalid) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.name, "' has no type"));
    }
    const int64_t end = declared_bytes_ + tensor.type.bytes();
    absl::StrAppend(&header, header.size() > 1 ? "," : "",
                    json(tensor.name).dump(-1, ' ', false, json::error_handler_t::replace),
                    ":{\"dtype\":\"", type, "\",\"shape\":", json(tensor.type.dims).dump(),
                    ",\"data_offsets\":[", declared_bytes_, ",", end, "]}");
    declared_bytes_ = end;
  }
  header += "}";
  while (header.size() % 8 != 0) header += ' ';
  if (files_ != nullptr) {
    absl::StatusOr<std::unique_ptr<AtomicFile>> file = AtomicFile::Create(*files_, path_);
    if (!file.ok()) return file.status();
    file_ = *std::move(file);
  }
  const uint64_t length = header.size();
  std::string start(reinterpret_cast<const char*>(&length), 8);
  start += header;
  hash_.Add(start.data(), static_cast<int64_t>(start.size()));
  total_ = static_cast<int64_t>(start.size());
  return file_->Append(start.data(), total_);
}

absl::Status SafetensorsWriter::Append(const void* data, int64_t bytes) {
  hash_.Add(data, bytes);
  written_ += bytes;
  total_ += bytes;
  return file_->Append(data, bytes);
}

absl::StatusOr<SafetensorsWriter::Written> SafetensorsWriter::Finish() {
  if (written_ != declared_bytes_) {
    return absl::InternalError(absl::StrCat("'", path_, "': ", written_, " bytes written, ",
                                            declared_bytes_, " announced"));
  }
  if (absl::Status s = file_->Commit(); !s.ok()) return s;
  return Written{hash_.Hex(), total_};
}

}  // namespace espalier
