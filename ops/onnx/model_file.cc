#include "ops/onnx/model_file.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier::onnx_import {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

constexpr int kReadBytes = 64 << 10;  // at a time

constexpr uint32_t LengthDelimitedTag(int field) {
  return WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

constexpr uint32_t kGraph = LengthDelimitedTag(onnx::ModelProto::kGraphFieldNumber);
constexpr uint32_t kNode = LengthDelimitedTag(onnx::GraphProto::kNodeFieldNumber);
constexpr uint32_t kInitializer = LengthDelimitedTag(onnx::GraphProto::kInitializerFieldNumber);
constexpr uint32_t kRawData = LengthDelimitedTag(onnx::TensorProto::kRawDataFieldNumber);
constexpr uint32_t kFloatData = LengthDelimitedTag(onnx::TensorProto::kFloatDataFieldNumber);

class BytesInMemory : public ReadableFile {
 public:
  explicit BytesInMemory(std::string bytes) : bytes_(std::move(bytes)) {}

  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  absl::Status Read(int64_t offset, int64_t bytes, void* out) const override {
    if (offset < 0 || bytes < 0 || offset > size() || bytes > size() - offset) {
      return absl::OutOfRangeError(
          absl::StrCat(bytes, " bytes at ", offset, " of ", size(), " bytes"));
    }
    if (bytes > 0) std::memcpy(out, bytes_.data() + offset, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }

 private:
  const std::string bytes_;
};

// Skips by seeking.
class FileStream : public google::protobuf::io::CopyingInputStream {
 public:
  explicit FileStream(const ReadableFile& file) : file_(file) {}

  int Read(void* buffer, int size) override {
    const int bytes = Left(size);
    if (bytes == 0) return 0;
    status_ = file_.Read(at_, bytes, buffer);
    if (!status_.ok()) return -1;
    at_ += bytes;
    return bytes;
  }
  int Skip(int count) override {
    const int bytes = Left(count);
    at_ += bytes;
    return bytes;
  }
  const absl::Status& status() const { return status_; }

 private:
  int Left(int most) const { return static_cast<int>(std::min<int64_t>(most, file_.size() - at_)); }

  const ReadableFile& file_;
  int64_t at_ = 0;
  absl::Status status_;
};

// Walks through the fields of model, graph and initializers. Methods return false if the bytes are
// not what they should be, or cannot be read.
class ModelReader {
 public:
  explicit ModelReader(ModelFile* result)
      : result_(*result), stream_(*result->file), blocks_(&stream_, kReadBytes), input_(&blocks_) {}

  bool Read() {
    const auto limit = input_.PushLimit(static_cast<int>(result_.file->size()));
    std::string rest, rest_of_graph;
    const bool read = ReadModel(&rest, &rest_of_graph);
    input_.PopLimit(limit);
    if (!read || !result_.model.MergeFromString(rest)) return false;
    return !result_.model.has_graph() ||
           result_.model.mutable_graph()->MergeFromString(rest_of_graph);
  }

  absl::Status status() const { return status_.ok() ? stream_.status() : status_; }

 private:
  // Reads a message's length, and its fields by `body`.
  template <typename Body>
  bool ReadMessage(Body body) {
    int length = 0;
    if (!ReadLength(&length)) return false;
    const auto limit = input_.PushLimit(length);
    const bool read = body() && input_.ConsumedEntireMessage();
    input_.PopLimit(limit);
    return read;
  }

  bool ReadLength(int* length) {
    return input_.ReadVarintSizeAsInt(length) && *length <= input_.BytesUntilLimit();
  }

  bool ReadModel(std::string* rest, std::string* rest_of_graph) {
    StringOutputStream target(rest);
    CodedOutputStream others(&target);
    while (const uint32_t tag = input_.ReadTag()) {
      const bool read =
          tag == kGraph
              ? ReadMessage([&] { return ReadGraph(result_.model.mutable_graph(), rest_of_graph); })
              : WireFormatLite::SkipField(&input_, tag, &others);
      if (!read) return false;
    }
    return input_.ConsumedEntireMessage();
  }

  bool ReadGraph(onnx::GraphProto* graph, std::string* rest) {
    StringOutputStream target(rest);
    CodedOutputStream others(&target);
    while (const uint32_t tag = input_.ReadTag()) {
      bool read = false;
      if (tag == kInitializer) {
        read = ReadMessage([&] { return ReadInitializer(graph->add_initializer()); });
      } else if (tag == kNode) {
        read = ReadMessage([&] { return graph->add_node()->MergeFromCodedStream(&input_); });
      } else {
        read = WireFormatLite::SkipField(&input_, tag, &others);
      }
      if (!read) return false;
    }
    return true;
  }

  bool ReadInitializer(onnx::TensorProto* tensor) {
    const int begin = input_.CurrentPosition(), length = input_.BytesUntilLimit();
    std::optional<ElementsInFile> elements;
    int large = 0;  // fields that are left in the file
    std::string rest;
    if (!ReadFields(&rest, &elements, &large) || !tensor->MergeFromString(rest)) return false;
    if (!elements.has_value()) return true;
    const bool floats = tensor->data_type() == onnx::TensorProto::FLOAT &&
                        elements->bytes % sizeof(float) == 0 && tensor->float_data_size() == 0;
    if (large == 1 && !tensor->has_raw_data() && (elements->raw || floats)) {
      result_.left[tensor] = *elements;
      return true;
    }
    // Elements in several fields, which the protobuf library puts together.
    std::string bytes(static_cast<size_t>(length), '\0');
    status_ = result_.file->Read(begin, length, bytes.data());
    return status_.ok() && tensor->ParseFromString(bytes);
  }

  // The fields of a tensor but large elements.
  bool ReadFields(std::string* rest, std::optional<ElementsInFile>* elements, int* large) {
    StringOutputStream target(rest);
    CodedOutputStream others(&target);
    while (const uint32_t tag = input_.ReadTag()) {
      if (tag != kRawData && tag != kFloatData) {
        if (!WireFormatLite::SkipField(&input_, tag, &others)) return false;
        continue;
      }
      int length = 0;
      if (!ReadLength(&length)) return false;
      if (length > kMaxElementsInMemory) {
        *elements = {input_.CurrentPosition(), length, tag == kRawData};
        ++*large;
        if (!input_.Skip(length)) return false;
        continue;
      }
      std::string bytes;
      if (!input_.ReadString(&bytes, length)) return false;
      others.WriteTag(tag);
      others.WriteVarint32(static_cast<uint32_t>(length));
      others.WriteString(bytes);
    }
    return true;
  }

  ModelFile& result_;
  FileStream stream_;
  google::protobuf::io::CopyingInputStreamAdaptor blocks_;
  CodedInputStream input_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ModelFile>> ReadModelFile(std::shared_ptr<const ReadableFile> file,
                                                         std::string folder) {
  const int64_t size = file->size();
  if (size >= std::numeric_limits<int>::max()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the ONNX file has ", size,
                     " bytes; accepted: less than 2 GiB, the most that the format allows; export "
                     "the weights to a second file (external data)"));
  }
  auto result = std::make_unique<ModelFile>();
  result->file = std::move(file);
  result->folder = std::move(folder);
  ModelReader reader(result.get());
  const bool read = reader.Read();
  if (absl::Status status = reader.status(); !status.ok()) return status;
  if (!read || !result->model.has_graph()) {
    return absl::InvalidArgumentError(
        absl::StrCat("these ", size,
                     " bytes are no complete ONNX model: the file is cut short, damaged or of "
                     "another format"));
  }
  return result;
}

std::shared_ptr<const ReadableFile> MemoryFile(std::string bytes) {
  return std::make_shared<BytesInMemory>(std::move(bytes));
}

}  // namespace espalier::onnx_import
