#include "storage/manifest.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json/bounded_json.h"
#include "ops/tensor/half_conversion.h"
#include "storage/checkpoint.h"

namespace espalier {
namespace {

using nlohmann::json;

constexpr int kFormatVersion = 2;         // the newest that this program reads
constexpr int kSharedFilesVersion = 2;    // the first with shared files
constexpr int64_t kPartBytes = 16 << 20;  // of a tensor, in memory at a time

absl::Status Damaged(const std::string& path, const std::string& field) {
  return absl::DataLossError(absl::StrCat("'", path, "': field '", field, "' is missing or wrong"));
}

bool PlainName(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name != "." && name != "..";
}

// Rounds f32 elements to a narrow type, in place.
void Narrow(DType type, std::vector<char>* bytes) {
  const size_t count = bytes->size() / sizeof(float);
  for (size_t i = 0; i < count; ++i) {
    float wide;
    std::memcpy(&wide, bytes->data() + i * sizeof(float), sizeof(wide));
    const uint16_t narrow = type == DType::kBF16 ? F32ToBF16(wide) : F32ToF16(wide);
    std::memcpy(bytes->data() + i * sizeof(narrow), &narrow, sizeof(narrow));
  }
  bytes->resize(count * sizeof(uint16_t));
}

absl::Status WriteWholeParameters(FileSystem& files, CheckpointReader& reader,
                                  const std::string& path,
                                  const std::map<std::string, DType>& types) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const auto& [name, tensor] : reader.tensors()) {
    if (tensor.is_state) continue;
    tensors.push_back({name, {tensor.dtype, tensor.global}});
    const auto type = types.find(name);
    if (type != types.end() && IsNarrow(type->second) && tensor.dtype == DType::kF32) {
      tensors.back().type.dtype = type->second;
    }
  }
  SafetensorsWriter writer(files, path);
  if (absl::Status s = writer.Begin(tensors, {{"format", "pt"}}); !s.ok()) return s;
  std::vector<char> bytes;
  for (const SafetensorsWriter::Tensor& tensor : tensors) {
    TensorType stored = tensor.type;
    stored.dtype = reader.tensors().at(tensor.name).dtype;
    TensorSpec part = TensorSpec::Whole(stored);
    const int64_t rows = part.dims.empty() ? 1 : part.dims[0];
    const int64_t row_bytes = rows == 0 ? 0 : stored.bytes() / rows;
    const int64_t most = std::max<int64_t>(1, kPartBytes / std::max<int64_t>(1, row_bytes));
    for (int64_t row = 0; row < rows; row += most) {
      if (!part.dims.empty()) {
        part.offset[0] = row;
        part.dims[0] = std::min(most, rows - row);
      }
      bytes.resize(static_cast<size_t>(part.bytes()));
      absl::Status s = reader.Read(tensor.name, part, bytes.data());
      if (stored.dtype != tensor.type.dtype) Narrow(tensor.type.dtype, &bytes);
      if (s.ok()) s = writer.Append(bytes.data(), static_cast<int64_t>(bytes.size()));
      if (!s.ok()) return s;
    }
  }
  if (absl::Status s = reader.Verify(); !s.ok()) return s;
  return writer.Finish().status();
}

// Returns -1 if there is no such file.
absl::StatusOr<int64_t> SizeOf(ObjectReader& store, const std::string& name) {
  const absl::StatusOr<std::unique_ptr<ReadableFile>> file = store.Open(name);
  if (absl::IsNotFound(file.status())) return -1;
  return file.ok() ? absl::StatusOr<int64_t>((*file)->size()) : file.status();
}

}  // namespace

std::string PathOf(const std::string& folder, const ManifestFile& file) {
  if (!file.shared) return JoinPath(folder, file.name);
  const size_t slash = folder.rfind('/');
  return slash == std::string::npos ? file.name : JoinPath(folder.substr(0, slash), file.name);
}

absl::Status WriteManifest(CheckpointStore& store, const std::string& folder,
                           const Manifest& manifest) {
  json out;
  const bool shares = std::any_of(manifest.files.begin(), manifest.files.end(),
                                  [](const ManifestFile& file) { return file.shared; });
  out["format_version"] = shares ? kSharedFilesVersion : 1;
  out["job_id"] = manifest.job_id;
  out["steps_done"] = manifest.steps_done;
  out["graph_fingerprint"] = manifest.graph_fingerprint;
  out["files"] = json::array();
  for (const ManifestFile& file : manifest.files) {
    if (!PlainName(file.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("manifest: '", file.name, "' is no file name"));
    }
    json entry = {{"name", file.name}, {"sha256", file.sha256}, {"bytes", file.bytes}};
    if (file.shared) entry["shared"] = true;
    out["files"].push_back(std::move(entry));
  }
  return store.PutIfAbsent(JoinPath(folder, kManifestFile),
                           out.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

absl::StatusOr<Manifest> ReadManifest(ObjectReader& store, const std::string& folder) {
  const std::string path = JoinPath(folder, kManifestFile);
  absl::StatusOr<std::string> text = ReadObject(store, path, kMaxManifestBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(
        absl::StrCat("'", folder, "' is no finished checkpoint: it has no ", kManifestFile));
  }
  if (!text.ok()) return text.status();
  const json in = ParseBoundedJson<json>(*text).value_or(json());
  if (!in.is_object()) return absl::DataLossError(absl::StrCat("'", path, "' is no JSON object"));
  auto integer = [&](const json& from, const char* key, int64_t* value) {
    if (!from.contains(key) || !from[key].is_number_integer()) return false;
    *value = from[key].get<int64_t>();
    return *value >= 0;
  };
  auto text_of = [&](const json& from, const char* key, std::string* value) {
    if (!from.contains(key) || !from[key].is_string()) return false;
    *value = from[key].get<std::string>();
    return true;
  };
  Manifest manifest;
  auto shared_of = [&](const json& from, bool* shared) {
    if (!from.contains("shared")) return true;
    if (!from["shared"].is_boolean() || manifest.format_version < kSharedFilesVersion) return false;
    *shared = from["shared"].get<bool>();
    return true;
  };
  int64_t version = 0;
  if (!integer(in, "format_version", &version)) return Damaged(path, "format_version");
  if (version < 1) return Damaged(path, "format_version");
  if (version > kFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat("'", path, "' has format version ", version,
                                                      "; this program reads up to ",
                                                      kFormatVersion));
  }
  manifest.format_version = static_cast<int>(version);
  if (!text_of(in, "job_id", &manifest.job_id)) return Damaged(path, "job_id");
  if (!integer(in, "steps_done", &manifest.steps_done)) return Damaged(path, "steps_done");
  if (!text_of(in, "graph_fingerprint", &manifest.graph_fingerprint)) {
    return Damaged(path, "graph_fingerprint");
  }
  if (!in.contains("files") || !in["files"].is_array()) return Damaged(path, "files");
  std::set<std::string> paths;
  for (const json& entry : in["files"]) {
    ManifestFile file;
    if (!entry.is_object() || !text_of(entry, "name", &file.name) || !PlainName(file.name) ||
        !text_of(entry, "sha256", &file.sha256) || !integer(entry, "bytes", &file.bytes) ||
        !shared_of(entry, &file.shared) || !paths.insert(PathOf(folder, file)).second) {
      return Damaged(path, absl::StrCat("files[", manifest.files.size(), "]"));
    }
    manifest.files.push_back(std::move(file));
  }
  return manifest;
}

absl::Status CheckShardSizes(ObjectReader& store, const std::string& folder,
                             const Manifest& manifest) {
  const absl::StatusOr<std::vector<ObjectReader::Object>> objects = store.List(folder);
  if (!objects.ok()) return objects.status();
  std::map<std::string, int64_t> sizes;
  for (const ObjectReader::Object& object : *objects) sizes[object.name] = object.bytes;
  for (const ManifestFile& file : manifest.files) {
    const std::string name = PathOf(folder, file);
    if (file.shared) {  // a list of the folder around would have all checkpoints
      const absl::StatusOr<int64_t> size = SizeOf(store, name);
      if (!size.ok()) return size.status();
      if (*size >= 0) sizes[name] = *size;
    }
    const auto found = sizes.find(name);
    if (found == sizes.end()) {
      return absl::DataLossError(absl::StrCat("checkpoint: shard '", name, "' is missing"));
    }
    if (found->second != file.bytes) {
      return absl::DataLossError(absl::StrCat("checkpoint: shard '", name, "' has ", found->second,
                                              " bytes, the manifest says ", file.bytes));
    }
  }
  return absl::OkStatus();
}

absl::Status ExportHuggingFace(ObjectReader& store, const std::string& checkpoint,
                               const std::string& config_json, FileSystem& files,
                               const std::string& out, const std::map<std::string, DType>& types) {
  absl::StatusOr<std::unique_ptr<CheckpointReader>> reader =
      CheckpointReader::Open(store, checkpoint);
  if (!reader.ok()) return reader.status();
  if (absl::Status s = files.CreateDirectories(out); !s.ok()) return s;
  absl::Status s = WriteWholeParameters(files, **reader, JoinPath(out, "model.safetensors"), types);
  if (!s.ok()) return s;
  return WriteFileAtomically(files, JoinPath(out, "config.json"), config_json);
}

}  // namespace espalier
