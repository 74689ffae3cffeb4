#include "worker/stored_values.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/checkpoint.h"

namespace espalier {
namespace {

constexpr int64_t kPartBytes = 16 << 20;

// Fills buffer `index` by rows. `bytes` is reused.
absl::Status FillByRows(CheckpointReader& reader, int index, std::vector<char>* bytes,
                        Executor& executor) {
  const TensorSpec& spec = executor.spec(index);
  const int64_t rows = spec.dims.empty() ? 1 : spec.dims[0];
  const int64_t row_bytes = spec.bytes() / rows;
  const int64_t most = std::max<int64_t>(1, kPartBytes / row_bytes);
  TensorSpec part = spec;
  for (int64_t row = 0; row < rows; row += most) {
    if (!spec.dims.empty()) {
      part.offset[0] = spec.offset[0] + row;
      part.dims[0] = std::min(most, rows - row);
    }
    bytes->resize(static_cast<size_t>(part.bytes()));
    absl::Status status = reader.Read(executor.tensor_name(index), part, bytes->data());
    if (status.ok()) {
      status = executor.WriteBuffer(index, bytes->data(), part.bytes(), row * row_bytes);
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadStoredValues(ObjectReader& store, const std::string& folder, bool parameters,
                              const std::function<bool()>& cancelled, Executor& executor) {
  std::vector<int> wanted;
  for (int i = 0; i < executor.num_buffers(); ++i) {
    const v1::Buffer& buffer = executor.buffer(i);
    if (buffer.initializer().kind() != v1::Initializer::STORED || executor.is_alias(i)) continue;
    if (buffer.kind() == v1::LITERAL || parameters) wanted.push_back(i);
  }
  if (wanted.empty()) return absl::OkStatus();
  if (folder.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffer '", executor.buffer(wanted[0]).name(),
                     "' is STORED, but the request has no values_folder"));
  }
  const auto annotate = [&folder](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("values of the model in '", folder,
                                                    "': ", std::string(status.message())));
  };
  absl::StatusOr<std::unique_ptr<CheckpointReader>> reader = CheckpointReader::Open(store, folder);
  if (!reader.ok()) return annotate(reader.status());
  std::vector<char> bytes;
  for (int i : wanted) {
    if (cancelled && cancelled()) return absl::CancelledError("stopped while loading");
    if (absl::Status s = FillByRows(**reader, i, &bytes, executor); !s.ok()) return annotate(s);
  }
  absl::Status verified = (*reader)->Verify();
  return verified.ok() ? verified : annotate(verified);
}

}  // namespace espalier
