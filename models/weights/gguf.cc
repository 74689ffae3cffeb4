#include "models/weights/gguf.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/weights/gguf_splits.h"
#include "ops/cpu/threading/parallel.h"

namespace espalier {
namespace {

constexpr uint64_t kMaxEntries = 1 << 20;       // maximum numbers of keys and of tensors
constexpr uint64_t kMaxName = 1 << 16;          // bytes of a key or a tensor's name
constexpr uint64_t kMaxText = 16 << 20;         // bytes of a value
constexpr uint64_t kMaxElementsRead = 1 << 22;  // of an array
constexpr uint32_t kMaxRank = 4;
constexpr int64_t kWindow = 1 << 16;  // bytes read at once
constexpr int64_t kMaxElements = int64_t{1} << 48;

enum ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
  kNumTypes
};
constexpr int kBytes[kNumTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

// Reads the header sequentially through a window. The first error sticks.
class Cursor {
 public:
  Cursor(const ReadableFile& file, const std::string& path) : file_(file), path_(path) {}

  int64_t at() const { return at_; }
  const std::string& path() const { return path_; }
  const std::string& place() const { return place_; }
  const absl::Status& status() const { return status_; }

  bool Fail(const std::string& what) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat("'", path_, "': ", what));
    }
    return false;
  }

  bool Bytes(void* out, int64_t count) {
    if (!status_.ok()) return false;
    if (count > file_.size() - at_) {
      return Fail(absl::StrCat("it ends at byte ", file_.size(), ", within ", place_));
    }
    char* to = static_cast<char*>(out);
    while (count > 0) {
      if (at_ < window_at_ || at_ >= window_at_ + static_cast<int64_t>(window_.size())) {
        window_at_ = at_;
        window_.resize(static_cast<size_t>(std::min(kWindow, file_.size() - at_)));
        status_ = file_.Read(at_, static_cast<int64_t>(window_.size()), window_.data());
        if (!status_.ok()) return false;
      }
      const int64_t here = std::min(count, window_at_ + static_cast<int64_t>(window_.size()) - at_);
      std::memcpy(to, window_.data() + (at_ - window_at_), static_cast<size_t>(here));
      to += here;
      at_ += here;
      count -= here;
    }
    return true;
  }

  bool Skip(uint64_t count) {
    if (!status_.ok()) return false;
    if (count > static_cast<uint64_t>(file_.size() - at_)) {
      return Fail(absl::StrCat("it ends at byte ", file_.size(), ", within ", place_));
    }
    at_ += static_cast<int64_t>(count);
    return true;
  }

  template <typename T>
  bool Number(T* out) {
    return Bytes(out, sizeof(T));
  }

  bool Text(uint64_t longest, std::string* out) {
    uint64_t size = 0;
    if (!Number(&size)) return false;
    if (size > longest) {
      return Fail(
          absl::StrCat(place_, " has a string of ", size, " bytes; accepted: at most ", longest));
    }
    if (size > static_cast<uint64_t>(file_.size() - at_)) return Skip(size);
    out->resize(static_cast<size_t>(size));
    return Bytes(out->data(), static_cast<int64_t>(size));
  }

  void SetPlace(std::string place) { place_ = std::move(place); }

 private:
  const ReadableFile& file_;
  const std::string& path_;
  absl::Status status_;
  std::string place_ = "its header";
  int64_t at_ = 0;
  int64_t window_at_ = 0;
  std::vector<char> window_;
};

// Escapes untrusted names in messages.
std::string Shown(const std::string& name) {
  std::string shown;
  for (char c : name.substr(0, 80)) shown += c >= 32 && c < 127 ? c : '?';
  return shown;
}

template <typename T>
bool ReadAs(Cursor& cursor, GgufFile::Value* value) {
  T number{};
  if (!cursor.Number(&number)) return false;
  if constexpr (std::is_floating_point_v<T>) {
    *value = static_cast<double>(number);
  } else {
    if (number > 0 && static_cast<uint64_t>(number) > static_cast<uint64_t>(INT64_MAX)) {
      return cursor.Fail(absl::StrCat(cursor.place(), " has an integer beyond 2^63"));
    }
    *value = static_cast<int64_t>(number);
  }
  return true;
}

bool SkipArray(Cursor& cursor, GgufFile::Array* array) {
  if (!cursor.Number(&array->type) || !cursor.Number(&array->size)) return false;
  if (array->type >= kNumTypes || array->type == kArray) {
    return cursor.Fail(absl::StrCat(cursor.place(), " is an array of elements of type ",
                                    array->type, "; accepted: numbers, bools, strings"));
  }
  array->offset = cursor.at();
  if (array->type != kString) {
    const uint64_t size = static_cast<uint64_t>(kBytes[array->type]);
    if (array->size > UINT64_MAX / size) {
      return cursor.Fail(absl::StrCat(cursor.place(), " is an array of ", array->size,
                                      " elements, more than any file holds"));
    }
    return cursor.Skip(array->size * size);
  }
  for (uint64_t i = 0; i < array->size; ++i) {
    uint64_t length = 0;
    if (!cursor.Number(&length) || !cursor.Skip(length)) return false;
  }
  return true;
}

bool ReadValueOf(uint32_t type, Cursor& cursor, GgufFile::Value* value) {
  switch (type) {
    case kUint8:
      return ReadAs<uint8_t>(cursor, value);
    case kInt8:
      return ReadAs<int8_t>(cursor, value);
    case kUint16:
      return ReadAs<uint16_t>(cursor, value);
    case kInt16:
      return ReadAs<int16_t>(cursor, value);
    case kUint32:
      return ReadAs<uint32_t>(cursor, value);
    case kInt32:
      return ReadAs<int32_t>(cursor, value);
    case kUint64:
      return ReadAs<uint64_t>(cursor, value);
    case kInt64:
      return ReadAs<int64_t>(cursor, value);
    case kFloat32:
      return ReadAs<float>(cursor, value);
    case kFloat64:
      return ReadAs<double>(cursor, value);
    case kBool: {
      uint8_t bit = 0;
      if (!cursor.Number(&bit)) return false;
      *value = bit != 0;
      return true;
    }
    case kString: {
      std::string text;
      if (!cursor.Text(kMaxText, &text)) return false;
      *value = std::move(text);
      return true;
    }
    case kArray: {
      GgufFile::Array array;
      if (!SkipArray(cursor, &array)) return false;
      *value = array;
      return true;
    }
    default:
      return cursor.Fail(absl::StrCat(cursor.place(), " has a value of unknown type ", type));
  }
}

bool ReadValue(Cursor& cursor, GgufFile::Value* value) {
  uint32_t type = 0;
  return cursor.Number(&type) && ReadValueOf(type, cursor, value);
}

// Reads all of a tensor's entry except the start of the data, to which `offset` is relative.
absl::Status ReadTensor(Cursor& cursor, const std::string& name, GgufFile::Tensor* tensor,
                        uint64_t* offset, int64_t* bytes) {
  uint32_t rank = 0, type = 0;
  if (!cursor.Number(&rank)) return cursor.status();
  if (rank > kMaxRank) {
    cursor.Fail(absl::StrCat("tensor '", Shown(name), "' has ", rank,
                             " dimensions; accepted: at most ", kMaxRank));
    return cursor.status();
  }
  int64_t elements = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    uint64_t extent = 0;
    if (!cursor.Number(&extent)) return cursor.status();
    if (extent < 1 || extent > static_cast<uint64_t>(kMaxElements / elements)) {
      cursor.Fail(absl::StrCat("tensor '", Shown(name), "' has a dimension of ", extent,
                               "; accepted: 1 or more, and at most 2^48 elements in all"));
      return cursor.status();
    }
    elements *= static_cast<int64_t>(extent);
    tensor->dims.insert(tensor->dims.begin(), static_cast<int64_t>(extent));
  }
  if (!cursor.Number(&type) || !cursor.Number(offset)) return cursor.status();
  tensor->type = FindGgufType(type);
  if (tensor->type == nullptr) {
    return absl::UnimplementedError(absl::StrCat("'", cursor.path(), "': tensor '", Shown(name),
                                                 "' has ggml type ", type,
                                                 "; accepted: ", KnownGgufTypes()));
  }
  const int64_t row = tensor->dims.empty() ? 1 : tensor->dims.back();
  if (row % tensor->type->elements != 0) {
    cursor.Fail(absl::StrCat("tensor '", Shown(name), "' has rows of ", row, " elements; ",
                             tensor->type->name, " needs multiples of ", tensor->type->elements));
    return cursor.status();
  }
  *bytes = elements / tensor->type->elements * tensor->type->bytes;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(FileSystem& files,
                                                         const std::string& path) {
  const GgufSplitName name = ParseGgufSplitName(path);
  absl::StatusOr<std::unique_ptr<GgufFile>> whole = OpenSplit(files, path);
  if (!whole.ok()) return whole.status();
  if (absl::Status s = (*whole)->CheckSplit(0, name.count); !s.ok()) return s;
  for (int64_t number = 1; number < name.count; ++number) {
    const std::string other = GgufSplitPath(name, number);
    absl::StatusOr<std::unique_ptr<GgufFile>> part = OpenSplit(files, other);
    if (absl::IsNotFound(part.status())) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", path, "' is the first of ", name.count, " files, of which '", other,
                       "' is missing; accepted: all of them in one folder"));
    }
    if (!part.ok()) return part.status();
    if (absl::Status s = (*part)->CheckSplit(number, name.count); !s.ok()) return s;
    if (absl::Status s = (*whole)->AddSplit(std::move(**part)); !s.ok()) return s;
  }
  const auto found = (*whole)->metadata_.find(kGgufTotalTensors);
  const size_t count = (*whole)->tensors_.size();
  if (name.count > 1 && found != (*whole)->metadata_.end() &&
      found->second != Value(static_cast<int64_t>(count))) {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "': metadata '", kGgufTotalTensors,
                                                   "' must be ", count, ", the tensors of its ",
                                                   name.count, " files together"));
  }
  return whole;
}

absl::Status GgufFile::CheckSplit(int64_t number, int64_t count) const {
  const auto check = [&](const char* key, int64_t expected, int64_t otherwise) {
    const auto found = metadata_.find(key);
    const Value value = found == metadata_.end() ? Value(otherwise) : found->second;
    if (value == Value(expected)) return absl::OkStatus();
    const int64_t* given = std::get_if<int64_t>(&value);
    return absl::InvalidArgumentError(
        absl::StrCat("'", path(), "': metadata '", key, "' is ",
                     given == nullptr ? "no integer" : absl::StrCat(*given),
                     ", by its name it is number ", number + 1, " of ", count,
                     "; accepted: the files of a model under the names that gguf-split gives them, "
                     "NAME-00001-of-0000N.gguf"));
  };
  // gguf-split --merge writes a count of 0.
  const auto counted = metadata_.find(kGgufSplitCount);
  if (count == 1 && counted != metadata_.end() && counted->second == Value(int64_t{0})) {
    return absl::OkStatus();
  }
  absl::Status status = check(kGgufSplitCount, count, 1);
  if (status.ok()) status = check(kGgufSplitNumber, number, 0);
  return status;
}

absl::Status GgufFile::AddSplit(GgufFile part) {
  for (auto& [name, tensor] : part.tensors_) {
    tensor.part = parts_.size();
    const auto [there, is_new] = tensors_.emplace(name, std::move(tensor));
    if (is_new) continue;
    return absl::InvalidArgumentError(absl::StrCat("tensor '", Shown(name), "' is both in '",
                                                   path_of(there->second), "' and in '",
                                                   part.path(), "'"));
  }
  parts_.push_back(std::move(part.parts_[0]));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::OpenSplit(FileSystem& files,
                                                              const std::string& path) {
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = files.Open(path);
  if (!file.ok()) return file.status();
  const int64_t size = (*file)->size();
  Cursor cursor(**file, path);
  char magic[4] = {};
  uint32_t version = 0;
  uint64_t num_tensors = 0, num_values = 0;
  if (!cursor.Bytes(magic, 4) || !cursor.Number(&version)) return cursor.status();
  if (std::memcmp(magic, "GGUF", 4) != 0) {
    cursor.Fail("it does not begin with \"GGUF\"");
  } else if (version != 2 && version != 3) {
    cursor.Fail(absl::StrCat("it is GGUF version ", version, "; accepted: 2 and 3, little-endian"));
  }
  cursor.Number(&num_tensors);
  cursor.Number(&num_values);
  if (num_tensors > kMaxEntries || num_values > kMaxEntries) {
    cursor.Fail(absl::StrCat("it claims ", num_tensors, " tensors and ", num_values,
                             " values; accepted: at most ", kMaxEntries, " each"));
  }
  auto result = std::make_unique<GgufFile>();
  for (uint64_t i = 0; i < num_values && cursor.status().ok(); ++i) {
    std::string key;
    Value value;
    cursor.SetPlace(absl::StrCat("metadata value ", i));
    if (!cursor.Text(kMaxName, &key)) break;
    cursor.SetPlace(absl::StrCat("metadata '", Shown(key), "'"));
    if (!ReadValue(cursor, &value)) break;
    if (!result->metadata_.emplace(key, std::move(value)).second) {
      cursor.Fail(absl::StrCat("metadata '", Shown(key), "' is there twice"));
    }
  }
  if (!cursor.status().ok()) return cursor.status();

  int64_t alignment = 32;
  if (auto found = result->metadata_.find("general.alignment"); found != result->metadata_.end()) {
    const int64_t* given = std::get_if<int64_t>(&found->second);
    if (given == nullptr || *given < 1 || *given > (1 << 20) || (*given & (*given - 1)) != 0) {
      cursor.Fail("general.alignment must be a power of two of at most 2^20");
      return cursor.status();
    }
    alignment = *given;
  }
  struct Place {
    Tensor* tensor;
    const std::string* name;
    uint64_t offset;
    int64_t bytes;
  };
  std::vector<Place> places;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    std::string name;
    Tensor tensor;
    uint64_t offset = 0;
    int64_t bytes = 0;
    cursor.SetPlace(absl::StrCat("tensor ", i));
    if (!cursor.Text(kMaxName, &name)) return cursor.status();
    absl::Status status = ReadTensor(cursor, name, &tensor, &offset, &bytes);
    if (!status.ok()) return status;
    const auto [added, is_new] = result->tensors_.emplace(name, std::move(tensor));
    if (!is_new) cursor.Fail(absl::StrCat("tensor '", Shown(name), "' is there twice"));
    if (!cursor.status().ok()) return cursor.status();
    places.push_back({&added->second, &added->first, offset, bytes});
  }
  const int64_t start = (cursor.at() + alignment - 1) / alignment * alignment;
  for (const Place& place : places) {
    const uint64_t room = static_cast<uint64_t>(std::max<int64_t>(0, size - start));
    if (place.offset % static_cast<uint64_t>(alignment) != 0 || place.offset > room ||
        static_cast<uint64_t>(place.bytes) > room - place.offset) {
      cursor.Fail(absl::StrCat("tensor '", Shown(*place.name), "' takes ", place.bytes,
                               " bytes at ", place.offset, " of the ", room,
                               " bytes of data, in steps of ", alignment));
      return cursor.status();
    }
    place.tensor->offset = start + static_cast<int64_t>(place.offset);
  }
  result->parts_.push_back({path, *std::move(file)});
  return result;
}

absl::StatusOr<const GgufFile::Array*> GgufFile::FindArray(const std::string& key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) return nullptr;
  const Array* array = std::get_if<Array>(&found->second);
  if (array != nullptr && array->size <= kMaxElementsRead) return array;
  return absl::InvalidArgumentError(absl::StrCat("'", path(), "': metadata '", Shown(key),
                                                 "' must be an array of at most ", kMaxElementsRead,
                                                 " elements"));
}

absl::StatusOr<std::vector<std::string>> GgufFile::Strings(const std::string& key) const {
  const absl::StatusOr<const Array*> array = FindArray(key);
  if (!array.ok()) return array.status();
  std::vector<std::string> strings;
  if (*array == nullptr) return strings;
  Cursor cursor(*parts_[0].file, path());
  cursor.SetPlace(absl::StrCat("metadata '", Shown(key), "'"));
  if ((*array)->type != kString)
    cursor.Fail(absl::StrCat("metadata '", key, "' must hold strings"));
  cursor.Skip(static_cast<uint64_t>((*array)->offset));
  for (uint64_t i = 0; i < (*array)->size && cursor.status().ok(); ++i) {
    cursor.Text(kMaxName, &strings.emplace_back());
  }
  if (!cursor.status().ok()) return cursor.status();
  return strings;
}

absl::StatusOr<std::vector<double>> GgufFile::Numbers(const std::string& key) const {
  const absl::StatusOr<const Array*> array = FindArray(key);
  if (!array.ok()) return array.status();
  std::vector<double> numbers;
  if (*array == nullptr) return numbers;
  Cursor cursor(*parts_[0].file, path());
  cursor.SetPlace(absl::StrCat("metadata '", Shown(key), "'"));
  if ((*array)->type == kString)
    cursor.Fail(absl::StrCat("metadata '", key, "' must hold numbers"));
  cursor.Skip(static_cast<uint64_t>((*array)->offset));
  for (uint64_t i = 0; i < (*array)->size && cursor.status().ok(); ++i) {
    Value value;
    if (!ReadValueOf((*array)->type, cursor, &value)) break;
    const int64_t* whole = std::get_if<int64_t>(&value);
    const double* real = std::get_if<double>(&value);
    const bool* bit = std::get_if<bool>(&value);
    numbers.push_back(whole != nullptr  ? static_cast<double>(*whole)
                      : real != nullptr ? *real
                                        : static_cast<double>(bit != nullptr && *bit));
  }
  if (!cursor.status().ok()) return cursor.status();
  return numbers;
}

absl::Status GgufFile::ReadBlocks(const Tensor& tensor, int64_t begin, int64_t count,
                                  unsigned char* out) const {
  const GgufType& type = *tensor.type;
  const int64_t all = NumElements(tensor.dims) / type.elements;
  if (begin < 0 || count < 0 || begin > all || count > all - begin) {
    return absl::OutOfRangeError(absl::StrCat("'", path_of(tensor), "': read beyond a tensor"));
  }
  return file_of(tensor)->Read(tensor.offset + begin * type.bytes, count * type.bytes, out);
}

absl::Status GgufFile::Read(const Tensor& tensor, int64_t begin, int64_t count, float* out) const {
  const int64_t all = NumElements(tensor.dims);
  if (begin < 0 || count < 0 || begin > all || count > all - begin) {
    return absl::OutOfRangeError(absl::StrCat("'", path_of(tensor), "': read beyond a tensor"));
  }
  if (count == 0) return absl::OkStatus();
  const GgufType& type = *tensor.type;
  const int64_t first = begin / type.elements;
  const int64_t last = (begin + count + type.elements - 1) / type.elements;
  std::vector<unsigned char> raw(static_cast<size_t>((last - first) * type.bytes));
  absl::Status status = file_of(tensor)->Read(tensor.offset + first * type.bytes,
                                              static_cast<int64_t>(raw.size()), raw.data());
  if (!status.ok()) return status;
  ParallelFor(last - first, 4 * type.elements, [&](int64_t from_block, int64_t to_block) {
    float block[256];
    for (int64_t b = first + from_block; b < first + to_block; ++b) {
      const unsigned char* from = raw.data() + (b - first) * type.bytes;
      const int64_t at = b * type.elements;
      if (at >= begin && at + type.elements <= begin + count) {
        type.decode(from, out + (at - begin));
        continue;
      }
      type.decode(from, block);
      for (int64_t i = std::max(at, begin); i < std::min(at + type.elements, begin + count); ++i) {
        out[i - begin] = block[i - at];
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace espalier
