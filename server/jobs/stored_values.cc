#include "server/jobs/stored_values.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/checkpoint.h"

namespace espalier {
namespace {

// Tensors are written in entries of about this size, so that a worker that reads a part holds no
// more than one in memory.
constexpr int64_t kEntryBytes = 16 << 20;

class ValueSource : public CheckpointSource {
 public:
  // The tensor must outlive the source.
  void Add(const Value& value) {
    TensorSpec spec = TensorSpec::Whole(value.type);
    const int64_t rows = spec.dims.empty() ? 1 : spec.dims[0];
    const int64_t row_bytes = static_cast<int64_t>(value.constant.size()) / rows;
    const int64_t most = std::max<int64_t>(1, kEntryBytes / row_bytes);
    for (int64_t row = 0; row < rows; row += most) {
      if (!spec.dims.empty()) {
        spec.offset[0] = row;
        spec.dims[0] = std::min(most, rows - row);
      }
      entries_.push_back({value.name, spec, /*is_state=*/false});
      data_.push_back(value.constant.data() + row * row_bytes);
    }
  }

  absl::Status Read(int entry, std::vector<char>* bytes) override {
    std::copy_n(data_[static_cast<size_t>(entry)], bytes->size(), bytes->data());
    return absl::OkStatus();
  }

  const std::vector<CheckpointEntry>& entries() const { return entries_; }

 private:
  std::vector<CheckpointEntry> entries_;
  std::vector<const char*> data_;  // by entry
};

}  // namespace

std::vector<Value> TakeInitialValues(Graph* graph) {
  std::vector<Value> taken;
  for (ValueId v = 0; v < static_cast<ValueId>(graph->values().size()); ++v) {
    Value& value = graph->mutable_value(v);
    if (value.kind != ValueKind::kParameter || value.constant.empty()) continue;
    Value initial;
    initial.name = value.name;
    initial.type = value.type;
    initial.kind = value.kind;
    initial.constant = std::exchange(value.constant, std::string());
    taken.push_back(std::move(initial));
    value.initializer = {Initializer::kStored};
  }
  return taken;
}

absl::StatusOr<StoredValues> StoredValues::Write(FileSystem& files, const std::string& folder,
                                                 const std::string& job_id, const Graph& graph,
                                                 std::vector<Value> initial) {
  ValueSource source;
  for (const Value& value : initial) source.Add(value);
  for (const Value& value : graph.values()) {
    const bool large = static_cast<int64_t>(value.constant.size()) > kMaxLiteralBytes;
    if (value.kind == ValueKind::kConstant && large) source.Add(value);
  }
  if (source.entries().empty()) return StoredValues("");
  Manifest manifest;
  manifest.job_id = job_id;
  absl::StatusOr<ManifestFile> file =
      WriteCheckpointShard(files, folder, /*rank=*/0, source.entries(), source);
  absl::Status status = file.status();
  if (status.ok()) {
    manifest.files.push_back(*std::move(file));
    status = WriteManifest(files, folder, manifest);
  }
  if (status.ok()) return StoredValues(folder);
  return absl::Status(status.code(),
                      absl::StrCat("the model's initial values, which workers read from a folder, "
                                   "were not written: ",
                                   std::string(status.message())));
}

void StoredValues::Remove() {
  if (folder_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace espalier
