#include "server/replay/state_tensors.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "ops/program/tensor_names.h"
#include "ops/tensor/half_conversion.h"
#include "ops/tensor/view.h"
#include "worker/executor/initialize.h"

namespace espalier {
namespace {

TensorSpec SpecOf(const StateTensors::Tensor& tensor) {
  return TensorSpec::Whole({tensor.dtype, tensor.global});
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointTensors>> CheckpointTensors::Open(
    ObjectReader& store, const std::string& folder, int64_t steps_done) {
  absl::StatusOr<std::unique_ptr<CheckpointReader>> reader = CheckpointReader::Open(store, folder);
  if (!reader.ok()) return reader.status();
  if ((*reader)->manifest().steps_done != steps_done) {
    return absl::DataLossError(absl::StrCat("checkpoint '", folder, "' is of ",
                                            (*reader)->manifest().steps_done, " steps, not of ",
                                            steps_done));
  }
  return std::unique_ptr<CheckpointTensors>(new CheckpointTensors(*std::move(reader)));
}

absl::StatusOr<std::vector<char>> CheckpointTensors::Read(const std::string& name) {
  const TensorSpec spec = SpecOf(tensors().at(name));
  std::vector<char> bytes(static_cast<size_t>(spec.bytes()));
  if (absl::Status s = reader_->Read(name, spec, bytes.data()); !s.ok()) return s;
  return bytes;
}

InitialTensors::InitialTensors(const std::vector<v1::Program>& programs,
                               const std::vector<InitialValue>& stored)
    : stored_(stored) {
  for (const v1::Program& program : programs) {
    seed_ = program.seed();
    const std::vector<std::string> names = TensorNames(program);
    for (int b = 0; b < program.buffers_size(); ++b) {
      const v1::Buffer& buffer = program.buffers(b);
      const bool state = buffer.kind() == v1::OPTIMIZER_STATE;
      if (!state && buffer.kind() != v1::PARAMETER_SHARD) continue;
      const auto& dims =
          buffer.spec().global().empty() ? buffer.spec().dims() : buffer.spec().global();
      const std::string& name = names[static_cast<size_t>(b)];
      tensors_.emplace(
          name, Tensor{FromProto(buffer.spec().dtype()), Dims(dims.begin(), dims.end()), state});
      buffers_.emplace(name, &buffer);
    }
  }
}

absl::StatusOr<std::vector<char>> InitialTensors::Read(const std::string& name) {
  const Tensor& tensor = tensors_.at(name);
  const TensorSpec spec = SpecOf(tensor);
  std::vector<char> bytes(static_cast<size_t>(spec.bytes()));
  if (tensor.is_state) return bytes;  // zeros
  const v1::Buffer& buffer = *buffers_.at(name);
  if (buffer.initializer().kind() != v1::Initializer::STORED) {
    if (buffer.literal().empty()) {
      absl::Status s = Initialize(buffer.initializer(), name, seed_, spec, bytes.data());
      if (!s.ok()) return s;
      return bytes;
    }
    if (buffer.literal().size() != bytes.size()) {
      return absl::InternalError(absl::StrCat("parameter '", name, "' has an initial value of ",
                                              buffer.literal().size(), " bytes, not ",
                                              bytes.size()));
    }
    std::memcpy(bytes.data(), buffer.literal().data(), bytes.size());
    return bytes;
  }
  const auto value = std::find_if(stored_.begin(), stored_.end(),
                                  [&](const InitialValue& one) { return one.name == name; });
  if (value == stored_.end()) {
    return absl::InternalError(absl::StrCat("parameter '", name, "' has no initial value"));
  }
  if (value->type == spec.type()) {
    absl::Status s = value->read(0, spec.bytes(), bytes.data());
    if (!s.ok()) return s;
    return bytes;
  }
  if (value->type.dims != spec.dims || !IsNarrow(value->type.dtype) || spec.dtype != DType::kF32) {
    return absl::InternalError(absl::StrCat("parameter '", name, "' is ", ToString(spec.type()),
                                            ", its initial value ", ToString(value->type)));
  }
  // By WithPrecision; see StoredValues.
  std::vector<uint16_t> narrow(static_cast<size_t>(spec.num_elements()));
  absl::Status s = value->read(0, spec.num_elements() * static_cast<int64_t>(sizeof(uint16_t)),
                               reinterpret_cast<char*>(narrow.data()));
  if (!s.ok()) return s;
  for (size_t i = 0; i < narrow.size(); ++i) {
    const float wide = NarrowToF32(value->type.dtype, narrow[i]);
    std::memcpy(bytes.data() + i * sizeof(wide), &wide, sizeof(wide));
  }
  return bytes;
}

}  // namespace espalier
