#include "server/inference/prediction/row_independence.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "ops/tensor/half_conversion.h"

namespace espalier {
namespace {

constexpr uint32_t kSeed = 1;
// Of the largest element: what sums may differ by if their order differs.
constexpr float kTolerance = 1e-3F;

template <typename T>
void Append(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Numbers from -1 to 1; integers are `low` or low + 1, which most tables have.
void AppendElement(DType dtype, int low, std::mt19937& random, std::string* out) {
  const float number = static_cast<float>(random() % 2001) / 1000 - 1;
  switch (dtype) {
    case DType::kF32:
      return Append(number, out);
    case DType::kF16:
      return Append(F32ToF16(number), out);
    case DType::kBF16:
      return Append(F32ToBF16(number), out);
    default:
      break;
  }
  const bool second = number > 0;
  std::string integer(SizeOf(dtype), '\0');
  integer[0] = static_cast<char>(dtype == DType::kBool ? second : low + second);
  out->append(integer);
}

std::vector<float> Row(const TensorType& example, const std::string& values, int64_t index) {
  std::vector<float> row(static_cast<size_t>(example.num_elements()));
  const size_t size = SizeOf(example.dtype);
  for (size_t i = 0; i < row.size(); ++i) {
    const char* at = values.data() + static_cast<size_t>(index * example.bytes()) + i * size;
    uint16_t half = 0;
    if (size == sizeof half) std::memcpy(&half, at, sizeof half);
    if (example.dtype == DType::kF32) {
      std::memcpy(&row[i], at, sizeof(float));
    } else if (example.dtype == DType::kF16) {
      row[i] = F16ToF32(half);
    } else if (example.dtype == DType::kBF16) {
      row[i] = BF16ToF32(half);
    } else {
      int64_t integer = 0;
      std::memcpy(&integer, at, size);
      row[i] = static_cast<float>(integer);
    }
  }
  return row;
}

bool Differ(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0, difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) continue;
    largest = std::max({largest, std::abs(a[i]), std::abs(b[i])});
    difference = std::max(difference, std::abs(a[i] - b[i]));
  }
  return difference > kTolerance * largest;
}

// A round of passes with integers from `low` on: an output that mixes examples, or empty, or
// nothing if the graph refuses such inputs.
std::optional<std::string> MixedOutput(BatchRunner& runner, int64_t batch, bool draws, int low) {
  const GraphSignature& signature = runner.signature();
  const auto run = [&](const std::vector<std::string>& inputs) {
    std::vector<std::string> outputs;
    for (const GraphTensorType& output : signature.outputs) {
      outputs.emplace_back(static_cast<size_t>(batch * output.example.bytes()), '\0');
    }
    if (!runner.Run({{&inputs, &outputs, 0, batch}}).ok()) outputs.clear();
    return outputs;
  };
  std::mt19937 random(kSeed);
  std::vector<std::string> inputs;
  for (const GraphTensorType& input : signature.inputs) {
    std::string& values = inputs.emplace_back();
    for (int64_t i = 0; i < batch * input.example.num_elements(); ++i) {
      AppendElement(input.example.dtype, low, random, &values);
    }
  }
  const std::vector<std::string> different = run(inputs);
  for (int64_t row = 1; row < batch; ++row) {
    std::vector<std::string> copies;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto bytes = static_cast<size_t>(signature.inputs[i].example.bytes());
      const std::string example = inputs[i].substr(static_cast<size_t>(row) * bytes, bytes);
      std::string& values = copies.emplace_back();
      for (int64_t copy = 0; copy < batch; ++copy) values += example;
    }
    const std::vector<std::string> equal = run(copies);
    if (different.empty() || equal.empty()) return std::nullopt;
    for (size_t o = 0; o < signature.outputs.size(); ++o) {
      const TensorType& example = signature.outputs[o].example;
      const std::vector<float> own = Row(example, equal[o], row);
      const bool mixed = Differ(Row(example, different[o], row), own) ||
                         (!draws && Differ(Row(example, equal[o], 0), own));
      if (mixed) return signature.outputs[o].name;
    }
  }
  return "";
}

}  // namespace

std::string OutputThatMixesExamples(BatchRunner& runner, int64_t batch, bool draws) {
  std::optional<std::string> mixed;
  for (const int low : {0, 1}) {
    const std::optional<std::string> found = MixedOutput(runner, batch, draws, low);
    if (!found.has_value()) continue;
    if (found->empty()) return "";
    mixed = found;
  }
  return mixed.value_or("");
}

}  // namespace espalier
