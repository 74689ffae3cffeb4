// Helpers of property checks: tensors, and slices of them.
#pragma once

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/backend.h"
#include "tests/gpu/compare.h"

namespace espalier::gpu_check {

inline HostTensor Random(DType dtype, Dims dims, uint64_t seed) {
  HostTensor tensor = HostTensor::Zeros(TensorSpec::Whole({dtype, std::move(dims)}));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (int64_t i = 0; i < tensor.spec.num_elements(); ++i) SetValue(&tensor, i, uniform(random));
  return tensor;
}

inline HostTensor Ints(std::vector<int32_t> values) {
  HostTensor tensor =
      HostTensor::Zeros(TensorSpec::Whole({DType::kI32, {static_cast<int64_t>(values.size())}}));
  if (!values.empty()) {
    std::memcpy(tensor.bytes.data(), values.data(), values.size() * sizeof(int32_t));
  }
  return tensor;
}

// Returns rows [begin, end) of a tensor.
inline HostTensor Rows(const HostTensor& tensor, int64_t begin, int64_t end) {
  Dims dims = tensor.spec.dims;
  const size_t bytes = tensor.bytes.size() / static_cast<size_t>(dims[0]);
  dims[0] = end - begin;
  HostTensor rows{TensorSpec::Whole({tensor.spec.dtype, dims}), {}};
  rows.bytes.assign(tensor.bytes.begin() + begin * bytes, tensor.bytes.begin() + end * bytes);
  return rows;
}

inline KernelSpec SpecFor(const std::string& op, Attributes attributes,
                          const std::vector<HostTensor>& inputs, const TensorSpec& output) {
  KernelSpec spec;
  spec.op = op;
  spec.attributes = std::move(attributes);
  for (const HostTensor& t : inputs) spec.inputs.push_back(t.spec);
  spec.outputs = {output};
  return spec;
}

// Receives a label and an error message, empty if the check passed.
using AddVerdict = std::function<void(std::string, std::string)>;

// Batch invariance of serving kernels.
void CheckServing(Backend& cuda, const AddVerdict& add);
void CheckAttention(Backend& cuda, const AddVerdict& add);

}  // namespace espalier::gpu_check
