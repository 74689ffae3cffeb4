#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/cpu/convert.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/runner/program_model_runner.h"

namespace espalier {
namespace {

using nlohmann::json;

constexpr int64_t kMaxIndex = 64 << 20;

absl::StatusOr<std::vector<std::string>> WeightFiles(FileSystem& files, const std::string& folder) {
  absl::StatusOr<std::vector<std::string>> names = files.List(folder);
  if (!names.ok()) return names.status();
  auto has = [&](const char* name) {
    return std::find(names->begin(), names->end(), name) != names->end();
  };
  if (has("model.safetensors")) return std::vector<std::string>{"model.safetensors"};
  const char* index_name = "model.safetensors.index.json";
  if (!has(index_name)) {
    return absl::NotFoundError(
        absl::StrCat("'", folder, "' has neither model.safetensors nor ", index_name));
  }
  absl::StatusOr<std::string> text = ReadWholeFile(files, JoinPath(folder, index_name), kMaxIndex);
  if (!text.ok()) return text.status();
  const json index = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  std::set<std::string> shards;
  if (index.is_object() && index.contains("weight_map") && index["weight_map"].is_object()) {
    for (const auto& [tensor, shard] : index["weight_map"].items()) {
      // A name within the folder, never a path out of it.
      if (!shard.is_string() || shard.get<std::string>().find('/') != std::string::npos) {
        shards.clear();
        break;
      }
      shards.insert(shard.get<std::string>());
    }
  }
  if (shards.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("'", JoinPath(folder, index_name),
                                                   "': weight_map must map tensors to file names"));
  }
  return std::vector<std::string>(shards.begin(), shards.end());
}

}  // namespace

absl::Status LoadWeights(const std::string& folder, Executor& executor) {
  std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  absl::StatusOr<std::vector<std::string>> names = WeightFiles(*files, folder);
  if (!names.ok()) return names.status();
  std::vector<std::unique_ptr<SafetensorsFile>> open;
  std::map<std::string, std::pair<const SafetensorsFile*, const SafetensorsEntry*>> tensors;
  for (const std::string& name : *names) {
    absl::StatusOr<std::unique_ptr<SafetensorsFile>> file =
        SafetensorsFile::Open(*files, JoinPath(folder, name));
    if (!file.ok()) return file.status();
    for (const auto& [tensor, entry] : (*file)->tensors()) {
      tensors[tensor] = {file->get(), &entry};
    }
    open.push_back(*std::move(file));
  }
  std::vector<char> raw, converted;
  std::vector<float> wide;
  for (int i = 0; i < executor.num_buffers(); ++i) {
    if (executor.buffer(i).kind() != proto::PARAMETER_SHARD) continue;
    const std::string& name = executor.buffer(i).name();
    const TensorSpec& spec = executor.spec(i);
    auto found = tensors.find(name);
    if (found == tensors.end()) {
      return absl::NotFoundError(absl::StrCat("the weights in '", folder, "' have no tensor '",
                                              name, "'; does config.json belong to them?"));
    }
    const auto& [file, entry] = found->second;
    if (entry->type.dims != spec.dims || !(spec.dims == spec.global)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", file->path(), "': tensor '", name, "' has shape ",
                       ToString(entry->type.dims), ", config.json asks for ", ToString(spec.dims)));
    }
    if (!IsFloat(entry->type.dtype) || !IsFloat(spec.dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("'", file->path(), "': tensor '", name,
                                                     "' is ", entry->dtype_name,
                                                     "; accepted: F32, BF16, F16"));
    }
    raw.resize(static_cast<size_t>(entry->bytes));
    if (absl::Status s = file->Read(*entry, 0, entry->bytes, raw.data()); !s.ok()) return s;
    const void* data = raw.data();
    if (entry->type.dtype != spec.dtype) {
      wide.resize(static_cast<size_t>(spec.num_elements()));
      converted.resize(static_cast<size_t>(spec.bytes()));
      ToF32(entry->type.dtype, raw.data(), wide.data(), spec.num_elements());
      FromF32(spec.dtype, wide.data(), converted.data(), spec.num_elements());
      data = converted.data();
    }
    if (absl::Status s = executor.WriteBuffer(i, data, spec.bytes()); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace espalier
