// Reads ONNX files. The elements of large initializers stay in the file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "third_party/onnx/onnx.pb.h"

namespace espalier::onnx_import {

// Elements of more bytes stay in files.
constexpr int64_t kMaxElementsInMemory = 64 << 10;

// The elements of one tensor in the model's file.
struct ElementsInFile {
  int64_t offset = 0, bytes = 0;
  bool raw = true;  // raw_data; otherwise float_data, which has the same form for floats
};

struct ModelFile {
  onnx::ModelProto model;
  std::shared_ptr<const ReadableFile> file;
  std::string folder;  // with external data (ImportOptions::folder)
  // Initializers of the model's graph whose raw_data or float_data is not in `model`.
  std::unordered_map<const onnx::TensorProto*, ElementsInFile> left;
};

// Needs the memory of what is not left in the file: nodes with their constants, small initializers,
// and large ones in forms that exporters do not write. Returns InvalidArgument if the file is no
// ONNX model, ResourceExhausted if it is larger than the format allows, and errors of reading it.
absl::StatusOr<std::unique_ptr<ModelFile>> ReadModelFile(std::shared_ptr<const ReadableFile> file,
                                                         std::string folder);

// A file in memory.
std::shared_ptr<const ReadableFile> MemoryFile(std::string bytes);

}  // namespace espalier::onnx_import
