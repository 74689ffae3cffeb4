#include "tests/benchmarks/image_workloads.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph.h"
#include "planner/testing/zoo/models.h"

namespace espalier {
namespace {

constexpr int64_t kDigitEdge = 8;
constexpr zoo::ResNetSizes kResNet{.edge = 64, .width = 16, .classes = 10};
constexpr zoo::Unet3dSizes kUnet{.edge = 32, .width = 8};
constexpr int64_t kImages = 1024, kVolumes = 192;

struct Digits {
  std::shared_ptr<const Dataset> dataset;
  const Column* images = nullptr;
  const Column* classes = nullptr;
};

absl::StatusOr<Digits> LoadDigits() {
  const char* const path = "tests/data/digits.npz";
  std::ifstream file(path, std::ios::binary);
  if (!file.good()) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path, "; run from the repository"));
  }
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  auto dataset = Dataset::FromNpz(bytes, 0);
  if (!dataset.ok()) return dataset.status();
  Digits digits{*dataset};
  for (const Column& column : digits.dataset->columns()) {
    (column.example.dims.empty() ? digits.classes : digits.images) = &column;
  }
  if (digits.images == nullptr || digits.classes == nullptr ||
      digits.images->example.num_elements() != kDigitEdge * kDigitEdge) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected images of 8 x 8 and classes"));
  }
  return digits;
}

// One digit with every pixel enlarged to a square.
struct Enlarged {
  std::vector<float> ink;  // [edge * edge], from 0 to 1
  int32_t digit = 0;
};

absl::StatusOr<Enlarged> Enlarge(const Digits& digits, int64_t example, int64_t edge) {
  const Dims& dims = digits.images->example.dims;
  std::vector<float> pixels(kDigitEdge * kDigitEdge);
  Enlarged out;
  absl::Status s = digits.dataset->Read(*digits.images, example, Dims(dims.size(), 0), dims,
                                        DType::kF32, reinterpret_cast<char*>(pixels.data()));
  if (s.ok()) {
    s = digits.dataset->Read(*digits.classes, example, {}, {}, DType::kI32,
                             reinterpret_cast<char*>(&out.digit));
  }
  if (!s.ok()) return s;
  const float most = std::max(1.0f, *std::max_element(pixels.begin(), pixels.end()));
  for (int64_t row = 0; row < edge; ++row) {
    for (int64_t column = 0; column < edge; ++column) {
      const int64_t from = row * kDigitEdge / edge * kDigitEdge + column * kDigitEdge / edge;
      out.ink.push_back(pixels[from] / most);
    }
  }
  return out;
}

template <typename T>
Column ColumnOf(const std::string& name, DType dtype, Dims dims, const std::vector<T>& values) {
  Column column{name, {dtype, std::move(dims)}, std::vector<char>(values.size() * sizeof(T))};
  std::memcpy(column.data.data(), values.data(), column.data.size());
  return column;
}

// Three similar color channels.
absl::StatusOr<std::shared_ptr<const Dataset>> Images(const Digits& digits) {
  const int64_t edge = kResNet.edge;
  std::vector<float> pixels;
  std::vector<int32_t> classes;
  for (int64_t i = 0; i < kImages; ++i) {
    absl::StatusOr<Enlarged> digit = Enlarge(digits, i, edge);
    if (!digit.ok()) return digit.status();
    for (int64_t c = 0; c < kResNet.channels; ++c) {
      pixels.insert(pixels.end(), digit->ink.begin(), digit->ink.end());
    }
    classes.push_back(digit->digit);
  }
  return Dataset::FromColumns(
      {ColumnOf("image", DType::kF32, {kResNet.channels, edge, edge}, pixels),
       ColumnOf("labels", DType::kI32, {}, classes)},
      0);
}

// A digit becomes a plate in the volume, whose depth grows with the digit. Classes: background,
// paper, ink.
absl::StatusOr<std::shared_ptr<const Dataset>> Volumes(const Digits& digits) {
  const int64_t edge = kUnet.edge;
  std::vector<float> voxels;
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < kVolumes; ++i) {
    absl::StatusOr<Enlarged> digit = Enlarge(digits, i, edge);
    if (!digit.ok()) return digit.status();
    const int64_t front = digit->digit, back = front + edge / 2;
    for (int64_t c = 0; c < kUnet.channels; ++c) {
      for (int64_t depth = 0; depth < edge; ++depth) {
        for (float ink : digit->ink) {
          const bool inside = depth >= front && depth < back;
          voxels.push_back(inside ? 0.25f + ink : 0.0f);
          if (c == 0) labels.push_back(inside ? 1 + (ink > 0.5f) : 0);
        }
      }
    }
  }
  return Dataset::FromColumns(
      {ColumnOf("volume", DType::kF32, {kUnet.channels, edge, edge, edge}, voxels),
       ColumnOf("labels", DType::kI32, {edge, edge, edge}, labels)},
      0);
}

}  // namespace

absl::StatusOr<ImageWorkload> MakeImageWorkload(const std::string& name) {
  absl::StatusOr<Digits> digits = LoadDigits();
  if (!digits.ok()) return digits.status();
  ImageWorkload job;
  job.name = name;
  const bool images = name == "resnet50";
  auto dataset = images ? Images(*digits) : Volumes(*digits);
  if (!dataset.ok()) return dataset.status();
  job.dataset = *std::move(dataset);
  job.description = images ? absl::StrCat("ResNet-50, ", kResNet.width,
                                          " channels for 64, images "
                                          "of ",
                                          kResNet.edge, "^2")
                           : absl::StrCat("3D U-Net, ", kUnet.width,
                                          " channels for 32, volumes of ", kUnet.edge, "^3");
  return job;
}

absl::StatusOr<Graph> ImageModelGraph(const OpRegistry& registry, const std::string& name,
                                      int64_t batch) {
  absl::StatusOr<Graph> graph = absl::InvalidArgumentError(
      absl::StrCat("model '", name, "'; accepted: resnet50, unet3d, unet3d_group_norm"));
  if (name == "resnet50") {
    graph = zoo::BuildResNet50(registry, kResNet);
  } else if (name == "unet3d") {
    graph = zoo::BuildUnet3d(registry, kUnet);
  } else if (name == "unet3d_group_norm") {
    zoo::Unet3dSizes sizes = kUnet;
    sizes.norm_groups = 4;
    graph = zoo::BuildUnet3d(registry, sizes);
  }
  if (!graph.ok()) return graph.status();
  if (absl::Status bound = BindAndInfer(registry, batch, &*graph); !bound.ok()) return bound;
  return graph;
}

absl::StatusOr<std::shared_ptr<const Dataset>> FirstExamples(const Dataset& dataset, int64_t count,
                                                             bool nudged) {
  std::vector<Column> columns = dataset.columns();
  for (Column& column : columns) {
    const size_t bytes = static_cast<size_t>(count * column.example.bytes());
    if (column.data.size() < bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("column '", column.name, "' has less than ", count, " examples"));
    }
    column.data.resize(bytes);
    for (size_t at = 0; nudged && column.example.dtype == DType::kF32 && at < bytes; at += 8) {
      float pixel;
      std::memcpy(&pixel, &column.data[at], sizeof(pixel));
      pixel = std::nextafter(pixel, 2.0f);
      std::memcpy(&column.data[at], &pixel, sizeof(pixel));
    }
  }
  return Dataset::FromColumns(std::move(columns), 0);
}

}  // namespace espalier
