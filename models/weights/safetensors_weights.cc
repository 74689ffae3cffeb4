#include "models/weights/safetensors_weights.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json/bounded_json.h"
#include "ops/cpu/dtype/convert.h"
#include "storage/safetensors.h"

namespace espalier {
namespace {

using nlohmann::json;

constexpr int64_t kMaxIndex = 64 << 20;

class SafetensorsWeights : public WeightFiles {
 public:
  absl::Status Add(FileSystem& files, const std::string& path) {
    absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(files, path);
    if (!file.ok()) return file.status();
    for (const auto& [name, entry] : (*file)->tensors()) {
      const auto [at, is_new] = tensors_.try_emplace(
          name, Tensor{entry.type.dims, entry.dtype_name, path, IsFloat(entry.type.dtype)});
      if (!is_new) {
        return absl::InvalidArgumentError(absl::StrCat("tensor '", name, "' is both in '",
                                                       at->second.file, "' and in '", path, "'"));
      }
      places_[name] = {file->get(), &entry};
    }
    open_.push_back(*std::move(file));
    return absl::OkStatus();
  }

  const std::map<std::string, Tensor>& tensors() const override { return tensors_; }

  absl::Status Read(const std::string& tensor, int64_t begin, int64_t count,
                    float* out) const override {
    const auto found = places_.find(tensor);
    if (found == places_.end()) {
      return absl::NotFoundError(absl::StrCat("there is no tensor '", tensor, "'"));
    }
    const auto& [file, entry] = found->second;
    const DType dtype = entry->type.dtype;
    if (!IsFloat(dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("'", file->path(), "': tensor '", tensor,
                                                     "' is ", entry->dtype_name,
                                                     "; accepted: F32, BF16, F16"));
    }
    const int64_t size = SizeOf(dtype);
    if (dtype == DType::kF32) return file->Read(*entry, begin * size, count * size, out);
    std::vector<char> raw(static_cast<size_t>(count * size));
    absl::Status status = file->Read(*entry, begin * size, count * size, raw.data());
    if (status.ok()) ToF32(dtype, raw.data(), out, count);
    return status;
  }

  absl::Status ReadBytes(const std::string& tensor, int64_t offset, int64_t bytes,
                         void* out) const override {
    const auto found = places_.find(tensor);
    if (found == places_.end()) {
      return absl::NotFoundError(absl::StrCat("there is no tensor '", tensor, "'"));
    }
    const auto& [file, entry] = found->second;
    if (entry->type.dtype == DType::kU8) return file->Read(*entry, offset, bytes, out);
    return absl::InvalidArgumentError(absl::StrCat("'", file->path(), "': tensor '", tensor,
                                                   "' is ", entry->dtype_name,
                                                   "; a packed matrix must be U8"));
  }

  std::optional<Place> PlaceOf(const std::string& tensor) const override {
    const auto found = places_.find(tensor);
    if (found == places_.end()) return std::nullopt;
    const auto& [file, entry] = found->second;
    return Place{file->file(), entry->offset, entry->type.dtype};
  }

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> open_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::pair<const SafetensorsFile*, const SafetensorsEntry*>> places_;
};

// Maps each tensor to its shard.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(FileSystem& files,
                                                             const std::string& path) {
  absl::StatusOr<std::string> text = ReadWholeFile(files, path, kMaxIndex);
  if (!text.ok()) return text.status();
  const json index = ParseBoundedJson<json>(*text, {.depth = 8}).value_or(json());
  std::map<std::string, std::string> shards;
  bool good = index.is_object() && index.contains("weight_map") &&
              index["weight_map"].is_object() && !index["weight_map"].empty();
  if (good) {
    for (const auto& [tensor, shard] : index["weight_map"].items()) {
      // A file name within the folder, never a path.
      good = good && shard.is_string() &&
             shard.get_ref<const std::string&>().find('/') == std::string::npos;
      if (good) shards[tensor] = shard.get<std::string>();
    }
  }
  if (!good) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "': weight_map must map tensors to file names"));
  }
  return shards;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightFiles>> OpenSafetensors(FileSystem& files,
                                                             const std::string& folder,
                                                             const std::vector<std::string>& names,
                                                             const std::string& stem) {
  const auto has = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const std::string whole = stem + ".safetensors", index = whole + ".index.json";
  auto weights = std::make_unique<SafetensorsWeights>();
  if (has(whole)) {
    absl::Status status = weights->Add(files, JoinPath(folder, whole));
    if (!status.ok()) return status;
    return weights;
  }
  if (!has(index)) return std::unique_ptr<WeightFiles>();
  const std::string path = JoinPath(folder, index);
  absl::StatusOr<std::map<std::string, std::string>> shards = ReadIndex(files, path);
  if (!shards.ok()) return shards.status();
  std::set<std::string> shard_names;
  for (const auto& [tensor, shard] : *shards) shard_names.insert(shard);
  for (const std::string& shard : shard_names) {
    if (!has(shard)) {
      return absl::NotFoundError(
          absl::StrCat("'", path, "' names '", shard, "', which is not in the folder"));
    }
    absl::Status status = weights->Add(files, JoinPath(folder, shard));
    if (!status.ok()) return status;
  }
  for (const auto& [tensor, shard] : *shards) {
    const auto found = weights->tensors().find(tensor);
    if (found == weights->tensors().end() || found->second.file != JoinPath(folder, shard)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", path, "' says that '", shard, "' holds tensor '", tensor, "', but it does not"));
    }
  }
  return weights;
}

}  // namespace espalier
