#include "worker/runner/adapter_files.h"

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

// `part` is [rows, columns], zero before.
absl::Status Fill(const AdapterMatrix& matrix, const WeightFiles& files, int64_t columns,
                  std::vector<float>& part) {
  const WeightFiles::Tensor& tensor = files.tensors().at(matrix.tensor);
  const int64_t width = tensor.dims[1];
  std::vector<float> values;
  float* to = part.data();
  for (const auto& [begin, end] : matrix.rows) {
    values.resize(static_cast<size_t>((end - begin) * width));
    absl::Status status =
        files.Read(matrix.tensor, begin * width, (end - begin) * width, values.data());
    if (!status.ok()) return status;
    for (int64_t row = 0; row < end - begin; ++row, to += columns) {
      for (int64_t i = 0; i < width; ++i) {
        const float value = values[static_cast<size_t>(row * width + i)];
        to[i] = static_cast<float>(matrix.scale * value);
        if (!std::isfinite(to[i])) {
          return absl::InvalidArgumentError(absl::StrCat(
              "'", tensor.file, "': tensor '", matrix.tensor, "' holds ", value, " at [",
              begin + row, ", ", i, "]; times the scale, ", matrix.scale, ", that is no number"));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AdapterFiles> AdapterFiles::Open(
    FileSystem& files, const std::vector<std::string>& artifacts,
    const std::function<absl::StatusOr<std::string>(const std::string& artifact)>& folder) {
  AdapterFiles out;
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
    Adapter adapter{artifact, *std::move(config), {}};
    for (const auto& [name, tensor] : (*weights)->tensors()) adapter.tensors[name] = tensor.dims;
    out.adapters_.push_back(std::move(adapter));
    out.weights_.push_back(*std::move(weights));
  }
  return out;
}

absl::StatusOr<AdapterFiles::Parameters> AdapterFiles::AddTo(const OpRegistry& registry,
                                                             ServingModel* model) const {
  if (adapters_.empty()) return Parameters();
  absl::StatusOr<AdaptedModel> adapted = AddAdapters(registry, std::move(*model), adapters_);
  if (!adapted.ok()) return adapted.status();
  *model = std::move(adapted->model);
  return std::move(adapted->parameters);
}

absl::Status AdapterFiles::Load(const Parameters& parameters, Executor& executor) const {
  for (const auto& [name, matrices] : parameters) {
    const int buffer = executor.FindBuffer(name);
    if (buffer < 0) {
      return absl::InternalError(absl::StrCat("the program has no parameter '", name, "'"));
    }
    const Dims& dims = executor.spec(buffer).dims;
    if (dims.size() != 3 || dims[0] != static_cast<int64_t>(weights_.size()) ||
        executor.spec(buffer).dtype != DType::kF32) {
      return absl::InternalError(absl::StrCat("parameter '", name, "' is ",
                                              ToString(executor.spec(buffer).type()), " for ",
                                              weights_.size(), " adapters"));
    }
    std::vector<float> part;
    for (size_t i = 0; i < matrices.size(); ++i) {
      part.assign(static_cast<size_t>(dims[1] * dims[2]), 0.0f);
      if (!matrices[i].tensor.empty()) {
        absl::Status status = Fill(matrices[i], *weights_[i], dims[2], part);
        if (!status.ok()) return status;
      }
      const int64_t bytes = static_cast<int64_t>(part.size() * sizeof(float));
      absl::Status status =
          executor.WriteBuffer(buffer, part.data(), bytes, static_cast<int64_t>(i) * bytes);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace espalier
