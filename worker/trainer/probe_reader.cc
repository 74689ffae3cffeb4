#include "worker/trainer/probe_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/kernel/loss_scale.h"
#include "ops/tensor/half_conversion.h"

namespace espalier {
namespace {

// Elements as f32. Integers do not occur: they have neither gradients nor updates.
std::vector<float> AsFloats(const TensorView& values) {
  std::vector<float> floats(static_cast<size_t>(values.num_elements()));
  if (values.dtype() == DType::kF32) {
    std::memcpy(floats.data(), values.data, floats.size() * sizeof(float));
    return floats;
  }
  const auto* narrow = static_cast<const uint16_t*>(values.data);
  for (size_t i = 0; i < floats.size(); ++i) floats[i] = NarrowToF32(values.dtype(), narrow[i]);
  return floats;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProbeReader>> ProbeReader::Create(Executor* executor,
                                                                 const Probes& probes) {
  std::unique_ptr<ProbeReader> reader(new ProbeReader(executor));
  const v1::Program& program = executor->program();
  const auto error = [](const v1::RankProbe& probe, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("probe ", probe.probe(), ": ", what));
  };
  for (const v1::RankProbe& message : probes) {
    absl::StatusOr<Reduction> reduction = ParseReduction(message.reduction());
    if (!reduction.ok()) return error(message, reduction.status().message());
    if (!message.minus().empty() && message.minus_size() != message.points_size()) {
      return error(message, "it subtracts from some points only");
    }
    const bool transforms = message.has_loss_scale() || !message.minus().empty();
    for (const auto* points : {&message.points(), &message.minus()}) {
      for (const v1::ProbePoint& point : *points) {
        if (point.buffer() < 0 || point.buffer() >= program.buffers_size() ||
            point.instructions() < 0 || point.instructions() > program.instructions_size()) {
          return error(message, absl::StrCat("there is no buffer ", point.buffer(), " after ",
                                             point.instructions(), " instructions"));
        }
        if (transforms && !IsFloat(executor->spec(point.buffer()).dtype)) {
          return error(message, "its elements are not floating-point numbers");
        }
      }
    }
    for (const v1::ProbePoint& point : message.minus()) {
      if (point.instructions() != 0) return error(message, "it subtracts what a step computes");
    }
    if (message.has_loss_scale() &&
        (message.loss_scale() < 0 || message.loss_scale() >= program.buffers_size() ||
         executor->spec(message.loss_scale()).bytes() != sizeof(LossScaleState))) {
      return error(message, "its loss scale is no state of loss scaling");
    }
    const int number = static_cast<int>(reader->probes_.size());
    for (int p = 0; p < message.points_size(); ++p) {
      const v1::ProbePoint& point = message.points(p);
      if (point.instructions() == 0) {
        reader->at_begin_.push_back({number, p});
      } else if (point.instructions() == program.instructions_size() && IsKept(*executor, point)) {
        reader->at_end_.push_back({number, p});
      } else {
        reader->reads_.push_back({point.instructions(), point.buffer()});
        reader->sources_.push_back({number, p});
      }
    }
    reader->probes_.push_back({message, *std::move(reduction), nullptr, {}, 1});
  }
  return reader;
}

// A parameter may be on the host between steps.
bool ProbeReader::IsKept(const Executor& executor, const v1::ProbePoint& point) {
  const v1::BufferKind kind = executor.buffer(point.buffer()).kind();
  return kind == v1::PARAMETER_SHARD || kind == v1::OPTIMIZER_STATE;
}

absl::StatusOr<std::vector<char>> ProbeReader::ReadKept(int buffer) {
  std::vector<char> bytes(static_cast<size_t>(executor_->spec(buffer).bytes()));
  absl::Status s = executor_->ReadBuffer(buffer, bytes.data(), static_cast<int64_t>(bytes.size()));
  if (!s.ok()) return s;
  return bytes;
}

absl::Status ProbeReader::ReadBetweenSteps(const std::vector<Source>& sources) {
  for (const Source& source : sources) {
    const int buffer =
        probes_[static_cast<size_t>(source.probe)].message.points(source.point).buffer();
    absl::StatusOr<std::vector<char>> bytes = ReadKept(buffer);
    absl::Status s =
        bytes.ok() ? ReadPoint(source, {bytes->data(), executor_->spec(buffer)}) : bytes.status();
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status ProbeReader::BeginStep() {
  for (Probe& probe : probes_) {
    probe.minus.clear();
    for (const v1::ProbePoint& point : probe.message.minus()) {
      absl::StatusOr<std::vector<char>> bytes = ReadKept(point.buffer());
      if (!bytes.ok()) return bytes.status();
      probe.minus.push_back(*std::move(bytes));
    }
    if (probe.message.has_loss_scale()) {
      LossScaleState state;
      absl::Status s = executor_->ReadBuffer(probe.message.loss_scale(), &state, sizeof(state));
      if (!s.ok()) return s;
      LossScaling scaling{};
      scaling.initial = static_cast<float>(executor_->program().optimizer().loss_scale().initial());
      probe.loss_scale = scaling.ScaleOf(state);
    }
    if (probe.message.points().empty()) continue;
    TensorSpec spec = executor_->spec(probe.message.points(0).buffer());
    const bool transforms = probe.message.has_loss_scale() || !probe.minus.empty();
    const bool whole = probe.message.points_size() == 1 && spec.dims == spec.global;
    probe.parts =
        std::make_unique<PartReducer>(probe.reduction, transforms ? DType::kF32 : spec.dtype,
                                      spec.global, probe.message.adds_up(), whole);
  }
  if (absl::Status s = ReadBetweenSteps(at_begin_); !s.ok()) return s;
  return executor_->ReadDuringSteps(reads_, [this](int read, const TensorView& values) {
    return ReadPoint(sources_[static_cast<size_t>(read)], values);
  });
}

absl::Status ProbeReader::ReadPoint(const Source& source, const TensorView& values) {
  Probe& probe = probes_[static_cast<size_t>(source.probe)];
  if (!probe.message.has_loss_scale() && probe.minus.empty()) return probe.parts->Add(values);
  std::vector<float> floats = AsFloats(values);
  if (!probe.minus.empty()) {
    std::vector<char>& before = probe.minus[static_cast<size_t>(source.point)];
    const std::vector<float> minus = AsFloats({before.data(), values.spec});
    for (size_t i = 0; i < floats.size(); ++i) floats[i] -= minus[i];
  }
  for (float& value : floats) value /= probe.loss_scale;
  TensorSpec spec = values.spec;
  spec.dtype = DType::kF32;
  return probe.parts->Add({floats.data(), spec});
}

absl::StatusOr<std::vector<v1::RankProbeResult>> ProbeReader::EndStep() {
  absl::Status s = executor_->ReadDuringSteps({}, nullptr);
  if (s.ok()) s = ReadBetweenSteps(at_end_);
  if (!s.ok()) return s;
  std::vector<v1::RankProbeResult> results;
  for (Probe& probe : probes_) {
    if (probe.parts == nullptr) continue;
    v1::RankProbeResult& result = results.emplace_back();
    result.set_probe(probe.message.probe());
    *result.mutable_part() = probe.parts->Take();
  }
  return results;
}

}  // namespace espalier
