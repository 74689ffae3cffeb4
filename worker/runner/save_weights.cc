#include "worker/runner/save_weights.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/cpu/dtype/convert.h"

namespace espalier {
namespace {

constexpr int64_t kNarrowingChunk = 1 << 20;  // elements tested for a narrower type at a time

// Returns the narrowest type that holds all values bit for bit.
DType NarrowestType(const float* values, int64_t count) {
  std::vector<char> narrow(static_cast<size_t>(kNarrowingChunk * 2));
  std::vector<float> back(static_cast<size_t>(kNarrowingChunk));
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    bool exact = true;
    for (int64_t at = 0; exact && at < count; at += kNarrowingChunk) {
      const int64_t part = std::min(kNarrowingChunk, count - at);
      FromF32(dtype, values + at, narrow.data(), part);
      ToF32(dtype, narrow.data(), back.data(), part);
      exact = std::memcmp(values + at, back.data(), static_cast<size_t>(part) * 4) == 0;
    }
    if (exact) return dtype;
  }
  return DType::kF32;
}

// One parameter as stored on the device.
absl::StatusOr<std::vector<char>> Read(Executor& executor, int index) {
  std::vector<char> bytes(static_cast<size_t>(executor.spec(index).bytes()));
  absl::Status status =
      executor.ReadBuffer(index, bytes.data(), static_cast<int64_t>(bytes.size()));
  if (!status.ok()) return status;
  return bytes;
}

}  // namespace

absl::StatusOr<SafetensorsWriter::Written> SaveWeights(
    Executor& executor, FileSystem& files, const std::string& path,
    const std::map<std::string, std::string>& metadata, const SaveProgress& progress) {
  std::vector<int> parameters;
  std::vector<SafetensorsWriter::Tensor> tensors;
  int64_t total = 0, done = 0;
  for (int i = 0; i < executor.num_buffers(); ++i) {
    if (executor.buffer(i).kind() != v1::PARAMETER_SHARD) continue;
    const TensorSpec& spec = executor.spec(i);
    if (!(spec.dims == spec.global)) {
      return absl::InvalidArgumentError(absl::StrCat("parameter '", executor.buffer(i).name(),
                                                     "' is split; only whole ones can be saved"));
    }
    TensorType type = spec.type();
    if (type.dtype == DType::kF32) {
      const absl::StatusOr<std::vector<char>> bytes = Read(executor, i);
      if (!bytes.ok()) return bytes.status();
      type.dtype =
          NarrowestType(reinterpret_cast<const float*>(bytes->data()), spec.num_elements());
    }
    total += type.bytes();
    parameters.push_back(i);
    tensors.push_back({executor.buffer(i).name(), std::move(type)});
  }
  SafetensorsWriter writer(files, path);
  if (absl::Status status = writer.Begin(tensors, metadata); !status.ok()) return status;
  for (size_t p = 0; p < parameters.size(); ++p) {
    absl::StatusOr<std::vector<char>> bytes = Read(executor, parameters[p]);
    if (!bytes.ok()) return bytes.status();
    const TensorSpec& spec = executor.spec(parameters[p]);
    if (tensors[p].type.dtype != spec.dtype) {
      std::vector<char> narrow(static_cast<size_t>(tensors[p].type.bytes()));
      FromF32(tensors[p].type.dtype, reinterpret_cast<const float*>(bytes->data()), narrow.data(),
              spec.num_elements());
      bytes = std::move(narrow);
    }
    const int64_t count = static_cast<int64_t>(bytes->size());
    absl::Status status = writer.Append(bytes->data(), count);
    done += count;
    if (status.ok() && progress) status = progress(done, total);
    if (!status.ok()) return status;
  }
  return writer.Finish();
}

}  // namespace espalier
