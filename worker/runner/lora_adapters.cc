#include "worker/runner/lora_adapters.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr char kConfig[] = "adapter_config.json";
constexpr int64_t kMaxConfigBytes = 1 << 20;

absl::Status In(const std::string& artifact, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("artifact '", artifact, "': ", status.message()));
}

// Copies the part of a matrix within one region of a parameter [adapters, rows, columns]. `part` is
// that region, row-major, initially zero.
absl::Status Fill(const AdapterMatrix& matrix, const WeightFiles& files, const TensorSpec& spec,
                  std::vector<float>& part) {
  const auto found = files.tensors().find(matrix.tensor);
  if (found == files.tensors().end()) {
    return absl::NotFoundError(absl::StrCat("there is no tensor '", matrix.tensor, "'"));
  }
  const WeightFiles::Tensor& tensor = found->second;
  const auto wrong = [&](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", tensor.file, "': tensor '", matrix.tensor, "' ", what...));
  };
  const int64_t columns = spec.global[2];
  if (tensor.dims.size() != 2 || tensor.dims[1] > columns) {
    return wrong("has shape ", ToString(tensor.dims), "; expected a matrix of up to ", columns,
                 " columns");
  }
  const int64_t width = tensor.dims[1];
  const int64_t first = spec.offset[2], end_column = std::min(width, first + spec.dims[2]);
  std::vector<float> values;
  int64_t at = 0;  // next row of the parameter
  for (const auto& [begin, end] : matrix.rows) {
    if (begin < 0 || end < begin || end > tensor.dims[0] || end - begin > spec.global[1] - at) {
      return wrong("of shape ", ToString(tensor.dims), " has no rows [", begin, ", ", end,
                   ") for rows from ", at, " on of ", spec.global[1]);
    }
    // Rows within the region.
    const int64_t from = std::max(at, spec.offset[1]);
    const int64_t to = std::min(at + end - begin, spec.offset[1] + spec.dims[1]);
    if (from < to && first < end_column) {
      values.resize(static_cast<size_t>((to - from) * width));
      const int64_t row0 = begin + from - at;
      absl::Status status =
          files.Read(matrix.tensor, row0 * width, (to - from) * width, values.data());
      if (!status.ok()) return status;
      for (int64_t row = from; row < to; ++row) {
        for (int64_t i = first; i < end_column; ++i) {
          const float value = values[static_cast<size_t>((row - from) * width + i)];
          const float scaled = static_cast<float>(matrix.scale * value);
          if (!std::isfinite(scaled)) {
            return wrong("holds ", value, " at [", row0 + row - from, ", ", i,
                         "]; times the scale, ", matrix.scale, ", that is no number");
          }
          part[static_cast<size_t>((row - spec.offset[1]) * spec.dims[2] + i - first)] = scaled;
        }
      }
    }
    at += end - begin;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoraAdapters> LoraAdapters::Open(
    FileSystem& files, const std::vector<std::string>& artifacts,
    const std::function<absl::StatusOr<std::string>(const std::string& artifact)>& folder) {
  LoraAdapters out;
  for (const std::string& artifact : artifacts) {
    const absl::StatusOr<std::string> place = folder(artifact);
    if (!place.ok()) return place.status();
    absl::StatusOr<std::string> text =
        ReadWholeFile(files, JoinPath(*place, kConfig), kMaxConfigBytes);
    if (!text.ok()) return In(artifact, text.status());
    absl::StatusOr<AdapterConfig> config = ReadAdapterConfig(*text);
    if (!config.ok()) return In(artifact, config.status());
    absl::StatusOr<std::unique_ptr<WeightFiles>> weights = OpenAdapterWeights(files, *place);
    if (!weights.ok()) return In(artifact, weights.status());
    LoraAdapter adapter{artifact, *std::move(config), {}};
    for (const auto& [name, tensor] : (*weights)->tensors()) adapter.tensors[name] = tensor.dims;
    out.adapters_.push_back(std::move(adapter));
    out.folders_.push_back(*place);
    out.weights_.push_back(*std::move(weights));
  }
  return out;
}

absl::StatusOr<LoraAdapters> LoraAdapters::OpenFolders(FileSystem& files,
                                                       const std::vector<std::string>& folders) {
  LoraAdapters out;
  for (const std::string& folder : folders) {
    absl::StatusOr<std::unique_ptr<WeightFiles>> weights = OpenAdapterWeights(files, folder);
    if (!weights.ok()) return weights.status();
    out.folders_.push_back(folder);
    out.weights_.push_back(*std::move(weights));
  }
  return out;
}

absl::StatusOr<LoraAdapters::Parameters> LoraAdapters::AddTo(const OpRegistry& registry,
                                                             ServingModel* model) const {
  if (adapters_.empty()) return Parameters();
  absl::StatusOr<LoraModel> adapted = AddLoraAdapters(registry, std::move(*model), adapters_);
  if (!adapted.ok()) return adapted.status();
  *model = std::move(adapted->model);
  return std::move(adapted->parameters);
}

absl::Status LoraAdapters::Load(const Parameters& parameters, Executor& executor,
                                const WeightLoadOptions& loading) const {
  size_t loaded = 0;
  for (int buffer = 0; buffer < executor.num_buffers(); ++buffer) {
    if (executor.buffer(buffer).kind() != v1::PARAMETER_SHARD) continue;
    const auto found = parameters.find(executor.tensor_name(buffer));
    if (found == parameters.end()) continue;
    ++loaded;
    const auto& [name, matrices] = *found;
    const TensorSpec& spec = executor.spec(buffer);
    const int64_t adapters = static_cast<int64_t>(weights_.size());
    if (spec.dims.size() != 3 || spec.dims[0] != adapters || spec.global[0] != adapters ||
        matrices.size() != weights_.size() || spec.dtype != DType::kF32) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", name, "' is ", ToString(spec.type()), ", made of ",
                       matrices.size(), " matrices, for ", weights_.size(), " adapters"));
    }
    std::vector<float> part;
    for (size_t i = 0; i < matrices.size(); ++i) {
      part.assign(static_cast<size_t>(spec.dims[1] * spec.dims[2]), 0.0f);
      if (!matrices[i].tensor.empty()) {
        absl::Status status = Fill(matrices[i], *weights_[i], spec, part);
        if (!status.ok()) return status;
      }
      const int64_t bytes = static_cast<int64_t>(part.size() * sizeof(float));
      absl::Status status =
          loading.Write(executor, buffer, part.data(), bytes, static_cast<int64_t>(i) * bytes);
      if (!status.ok()) return status;
    }
  }
  // A rank may have no part of some.
  if (executor.program().world_size() > 1 || loaded >= parameters.size()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the program has ", loaded, " of the adapters' ",
                                          parameters.size(), " parameters"));
}

}  // namespace espalier
