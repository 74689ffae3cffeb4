#include "server/jobs/stored_values.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "ops/tensor/half_conversion.h"
#include "storage/checkpoint.h"
#include "storage/data_folder_names.h"

namespace espalier {
namespace {

// Tensors are written in entries of about this size, so that a worker that reads a part holds no
// more than one in memory.
constexpr int64_t kEntryBytes = 16 << 20;

class ValueSource : public CheckpointSource {
 public:
  // What `read` refers to must outlive the source.
  void Add(const std::string& name, const TensorType& type, const ElementReader& read) {
    TensorSpec spec = TensorSpec::Whole(type);
    if (spec.num_elements() == 0) return;  // nothing to fill
    const int64_t rows = spec.dims.empty() ? 1 : spec.dims[0];
    const int64_t row_bytes = spec.bytes() / rows;
    const int64_t most = std::max<int64_t>(1, kEntryBytes / row_bytes);
    for (int64_t row = 0; row < rows; row += most) {
      if (!spec.dims.empty()) {
        spec.offset[0] = row;
        spec.dims[0] = std::min(most, rows - row);
      }
      entries_.push_back({name, spec, /*is_state=*/false});
      places_.push_back({&read, row * row_bytes});
    }
  }

  absl::Status Read(int entry, std::vector<char>* bytes) override {
    const Place& place = places_[static_cast<size_t>(entry)];
    return (*place.read)(place.offset, static_cast<int64_t>(bytes->size()), bytes->data());
  }

  const std::vector<CheckpointEntry>& entries() const { return entries_; }

 private:
  struct Place {
    const ElementReader* read;
    int64_t offset;
  };
  std::vector<CheckpointEntry> entries_;
  std::vector<Place> places_;  // by entry
};

// Reads f16 or bf16 elements as f32.
ElementReader WidenedReader(DType narrow, const ElementReader& read) {
  return [narrow, &read](int64_t offset, int64_t bytes, char* out) {
    std::vector<uint16_t> elements(static_cast<size_t>(bytes) / sizeof(float));
    absl::Status status = read(offset / 2, bytes / 2, reinterpret_cast<char*>(elements.data()));
    if (!status.ok()) return status;
    for (size_t i = 0; i < elements.size(); ++i) {
      const float wide = NarrowToF32(narrow, elements[i]);
      std::memcpy(out + i * sizeof(wide), &wide, sizeof(wide));
    }
    return absl::OkStatus();
  };
}

}  // namespace

absl::StatusOr<StoredValues> StoredValues::Write(CheckpointStore& store, const std::string& folder,
                                                 const std::string& job_id, const Graph& graph,
                                                 const std::vector<InitialValue>& initial) {
  ValueSource source;
  std::deque<ElementReader> made;
  for (const InitialValue& value : initial) {
    const ValueId planned = graph.FindValue(value.name);
    const bool widened = planned != kNoValue && IsNarrow(value.type.dtype) &&
                         graph.value(planned).type.dtype == DType::kF32;  // by WithPrecision
    if (!widened) {
      source.Add(value.name, value.type, value.read);
      continue;
    }
    made.push_back(WidenedReader(value.type.dtype, value.read));
    source.Add(value.name, {DType::kF32, value.type.dims}, made.back());
  }
  for (const Value& value : graph.values()) {
    const bool large = static_cast<int64_t>(value.constant.size()) > kMaxLiteralBytes;
    if (value.kind != ValueKind::kConstant || !large) continue;
    made.push_back([data = value.constant.data()](int64_t offset, int64_t bytes, char* out) {
      std::copy_n(data + offset, bytes, out);
      return absl::OkStatus();
    });
    source.Add(value.name, value.type, made.back());
  }
  if (source.entries().empty()) return StoredValues(store, "");
  Manifest manifest;
  manifest.job_id = job_id;
  absl::StatusOr<ManifestFile> file =
      WriteCheckpointShard(store, folder, /*rank=*/0, source.entries(), source);
  absl::Status status = file.status();
  if (status.ok()) {
    manifest.files.push_back(*std::move(file));
    status = WriteManifest(store, folder, manifest);
  }
  if (status.ok()) return StoredValues(store, folder);
  return absl::Status(status.code(),
                      absl::StrCat("the model's initial values, which workers read from a folder, "
                                   "were not written: ",
                                   std::string(status.message())));
}

void StoredValues::Remove() {
  if (folder_.empty()) return;
  store_->Delete(folder_).IgnoreError();
}

void RemoveLeftValues(CheckpointStore& store, const std::string& job_id) {
  const std::string folder = absl::StrCat(kCheckpointsFolder, "/", job_id);
  const absl::StatusOr<std::vector<ObjectReader::Object>> objects = store.List(folder);
  if (!objects.ok()) return;
  std::set<std::string> left;
  for (const ObjectReader::Object& object : *objects) {
    const std::vector<std::string> parts = absl::StrSplit(object.name, '/');
    if (absl::StartsWith(parts[2], "values-")) left.insert(absl::StrCat(folder, "/", parts[2]));
  }
  for (const std::string& values : left) store.Delete(values).IgnoreError();
}

}  // namespace espalier
