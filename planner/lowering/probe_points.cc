#include "planner/lowering/probe_points.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest.h"
#include "ops/graph/graph_proto.h"
#include "ops/program/buffer_accesses.h"
#include "ops/program/tensor_names.h"
#include "ops/tensor/shape.h"

namespace espalier {
namespace {

constexpr char kGradSuffix[] = ".grad";
constexpr char kLossScaleState[] = "espalier.loss_scale";
constexpr size_t kNamesInErrors = 8;
// Begins names of what only programs know.
constexpr char kInternalPrefix[] = "espalier.";

struct Box {
  Dims offset, dims;
  bool operator<(const Box& other) const {
    return std::tie(offset, dims) < std::tie(other.offset, other.dims);
  }
  int64_t volume() const { return NumElements(dims); }
};

Box BoxOf(const v1::TensorSpec& spec) {
  Box box;
  box.dims.assign(spec.dims().begin(), spec.dims().end());
  box.offset.assign(spec.offset().begin(), spec.offset().end());
  if (box.offset.empty()) box.offset.assign(box.dims.size(), 0);
  return box;
}

Dims WholeOf(const v1::TensorSpec& spec) {
  const auto& dims = spec.global().empty() ? spec.dims() : spec.global();
  return {dims.begin(), dims.end()};
}

bool BoxesMeet(const Box& a, const Box& b) {
  if (a.volume() == 0 || b.volume() == 0) return false;
  for (size_t d = 0; d < a.dims.size(); ++d) {
    if (a.offset[d] + a.dims[d] <= b.offset[d] || b.offset[d] + b.dims[d] <= a.offset[d]) {
      return false;
    }
  }
  return true;
}

int64_t BytesOf(const v1::Buffer& buffer) {
  Dims dims(buffer.spec().dims().begin(), buffer.spec().dims().end());
  return NumElements(dims) * static_cast<int64_t>(SizeOf(FromProto(buffer.spec().dtype())));
}

// The name of a tensor of which a rank has only numbered buffers: "x#2" for a tile of x.
std::string WithoutNumber(const std::string& name) {
  const size_t mark = name.rfind('#');
  if (mark == std::string::npos || mark + 1 == name.size() ||
      name.find_first_not_of("0123456789", mark + 1) != std::string::npos) {
    return name;
  }
  return name.substr(0, mark);
}

// Whether an instruction makes new values, rather than moving some.
bool Computes(const v1::Instruction& instruction) {
  return instruction.has_compute() || instruction.has_load_batch() || instruction.has_fill();
}

}  // namespace

std::string NamesThatThereAre(const std::string& name, const std::set<std::string>& names) {
  std::vector<std::string> similar;
  const bool internal = absl::StartsWith(name, kInternalPrefix);
  std::vector<std::string> known;
  for (const std::string& other : names) {
    if (internal || !absl::StartsWith(other, kInternalPrefix)) known.push_back(other);
  }
  for (const std::string& other : known) {
    if (absl::StrContains(other, name) || absl::StrContains(name, other)) similar.push_back(other);
  }
  if (similar.empty()) similar = known;
  const std::string nearest = Nearest(name, known);
  if (!nearest.empty()) {
    std::erase(similar, nearest);
    similar.insert(similar.begin(), nearest);
  }
  const size_t all = similar.size();
  if (all > kNamesInErrors) similar.resize(kNamesInErrors);
  if (similar.empty()) return "there are none";
  return absl::StrCat(
      "there are: '", absl::StrJoin(similar, "', '"), "'",
      all > kNamesInErrors ? absl::StrCat(" and ", all - kNamesInErrors, " more") : "");
}

std::string NoSuchTensor(absl::string_view kind, const std::string& name,
                         const std::set<std::string>& names) {
  return absl::StrCat("there is no ", kind, " '", name, "'; ", NamesThatThereAre(name, names));
}

ProbePoints::ProbePoints(const Graph& graph, const std::vector<v1::Program>& programs)
    : graph_(&graph) {
  std::set<std::string> parameters, names;
  for (const espalier::Value& value : graph.values()) {
    if (value.kind == ValueKind::kParameter) parameters.insert(value.name);
    names.insert(value.name);
  }
  for (const v1::Program& program : programs) {
    Rank& rank = ranks_.emplace_back(ReadAccesses(program));
    for (std::string& tensor : rank.tensors) {
      if (!names.contains(tensor)) tensor = WithoutNumber(tensor);
    }
    std::set<std::string> trained;
    for (const v1::Instruction& instruction : program.instructions()) {
      if (instruction.has_load_batch()) columns_.insert(instruction.load_batch().column());
      if (!instruction.has_update() || instruction.update().has_result()) continue;
      trained.insert(rank.tensors[static_cast<size_t>(instruction.update().parameter())]);
    }
    for (int b = 0; b < program.buffers_size(); ++b) {
      const std::string& name = rank.tensors[static_cast<size_t>(b)];
      switch (program.buffers(b).kind()) {
        case v1::PARAMETER_SHARD:
          if (parameters.contains(name)) parameters_.insert(name);
          break;
        case v1::OPTIMIZER_STATE:
          states_.insert(name);
          break;
        case v1::SCRATCH:
        case v1::HOST_INPUT:
          tensors_.insert(name);
          break;
        default:
          break;
      }
    }
    gradients_.insert(trained.begin(), trained.end());
  }
  for (const espalier::Value& value : graph.values()) {
    if (value.kind == ValueKind::kParameter || !tensors_.contains(value.name)) continue;
    values_.insert(value.name);
    if (!GradientTensor(value.name).empty()) gradients_.insert(value.name);
  }
  for (const auto& [name, id] : graph.outputs) {
    const std::string& value = graph.value(id).name;
    if (!names.contains(name) && values_.contains(value)) outputs_.emplace(name, value);
  }
}

ProbePoints ProbePoints::WithGradientsOf(
    const std::map<std::string, std::optional<std::string>>& others) const {
  ProbePoints points = *this;
  for (const auto& [value, other] : others) {
    if (other.has_value()) {
      points.gradients_.insert(value);
      points.gradients_of_[value] = *other;
    } else {
      points.gradients_.erase(value);
    }
  }
  return points;
}

TensorType ProbePoints::TypeOf(const Places& places) const {
  size_t rank = 0;
  while (places[rank].points().empty()) ++rank;
  const v1::TensorSpec& spec =
      ranks_[rank].program->buffers(places[rank].points(0).buffer()).spec();
  return {FromProto(spec.dtype()), WholeOf(spec)};
}

const std::string& ProbePoints::ValueOf(const std::string& name) const {
  const auto output = outputs_.find(name);
  return output == outputs_.end() ? name : output->second;
}

std::set<std::string> ProbePoints::states(const std::string& parameter) const {
  std::set<std::string> slots;
  for (const std::string& name : states_) {
    if (absl::StartsWith(name, parameter + ".")) slots.insert(name.substr(parameter.size() + 1));
  }
  return slots;
}

ProbePoints::Rank ProbePoints::ReadAccesses(const v1::Program& program) {
  const auto count = static_cast<size_t>(program.buffers_size());
  const int end = program.instructions_size();
  Rank rank{&program, TensorNames(program), {}, {}, {}, {}};
  rank.first_read.assign(count, end);
  rank.last_write.assign(count, -1);
  rank.summed.assign(count, -1);
  for (int i = 0; i < end; ++i) {
    const v1::Instruction& instruction = program.instructions(i);
    for (const BufferAccess& access : AccessesOf(instruction)) {
      const auto b = static_cast<size_t>(access.buffer);
      if (access.reads && !access.writes) rank.first_read[b] = std::min(rank.first_read[b], i);
      if (!access.writes) continue;
      rank.last_write[b] = i;
      const v1::Buffer& buffer = program.buffers(access.buffer);
      rank.writes.push_back({buffer.offset_bytes(), buffer.offset_bytes() + BytesOf(buffer), i});
    }
    const v1::CollectiveInstruction& collective = instruction.collective();
    if (instruction.has_collective() && collective.input() == collective.output() &&
        collective.kind() == v1::CollectiveInstruction::ALL_REDUCE) {
      rank.summed[static_cast<size_t>(collective.output())] = i;
    }
  }
  return rank;
}

// A buffer is whole after the last instruction that writes to its memory before the first one that
// reads it by its own index: also if tiles, pieces or the buffer that it is a view of were written.
int ProbePoints::Definition(const Rank& rank, int buffer) {
  const auto b = static_cast<size_t>(buffer);
  if (rank.summed[b] >= 0) return rank.summed[b];
  if (rank.first_read[b] == rank.program->instructions_size()) return rank.last_write[b];
  const int64_t begin = rank.program->buffers(buffer).offset_bytes();
  const int64_t end = begin + BytesOf(rank.program->buffers(buffer));
  int found = -1;
  for (const Write& write : rank.writes) {
    if (write.instruction >= rank.first_read[b]) break;
    if (write.begin < end && begin < write.end) found = write.instruction;
  }
  return found;
}

absl::StatusOr<ProbePoints::Places> ProbePoints::Choose(const std::string& what,
                                                        std::vector<Part> parts) const {
  const auto spec = [this](const Part& part) -> const v1::TensorSpec& {
    return ranks_[static_cast<size_t>(part.rank)].program->buffers(part.buffer).spec();
  };
  // Equal boxes hold equal values, so the earliest is as good as any.
  std::stable_sort(parts.begin(), parts.end(), [&](const Part& a, const Part& b) {
    return std::make_tuple(!a.computed, -BoxOf(spec(a)).volume(), a.rank, a.instructions) <
           std::make_tuple(!b.computed, -BoxOf(spec(b)).volume(), b.rank, b.instructions);
  });
  const int64_t whole = NumElements(WholeOf(spec(parts[0])));
  const auto cover = [&](const std::vector<Part>& from) -> std::optional<std::vector<Part>> {
    std::vector<Part> chosen;
    std::vector<Box> boxes;
    int64_t held = 0;
    for (const Part& part : from) {
      const Box box = BoxOf(spec(part));
      const bool meets = std::any_of(boxes.begin(), boxes.end(),
                                     [&](const Box& other) { return BoxesMeet(box, other); });
      if (meets || (held == whole && !chosen.empty())) continue;
      held += box.volume();
      boxes.push_back(box);
      chosen.push_back(part);
    }
    if (held != whole) return std::nullopt;
    return chosen;
  };
  std::optional<std::vector<Part>> chosen = cover(parts);
  if (!chosen.has_value()) {
    std::stable_sort(parts.begin(), parts.end(), [&](const Part& a, const Part& b) {
      return BoxOf(spec(a)).volume() > BoxOf(spec(b)).volume();
    });
    chosen = cover(parts);
  }
  if (!chosen.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(what,
                     " cannot be read with this plan: the ranks hold overlapping parts of "
                     "it; replay with a plan for one worker"));
  }
  Places places(ranks_.size());
  for (const Part& part : *chosen) {
    v1::ProbePoint* point = places[static_cast<size_t>(part.rank)].add_points();
    point->set_buffer(part.buffer);
    point->set_instructions(part.instructions);
  }
  return places;
}

absl::StatusOr<ProbePoints::Places> ProbePoints::ChooseComputed(const std::string& what,
                                                                const std::string& tensor) const {
  std::vector<Part> parts;
  bool partial = false;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const Rank& rank = ranks_[r];
    int summed = 0;
    for (int b = 0; b < rank.program->buffers_size(); ++b) {
      const v1::Buffer& buffer = rank.program->buffers(b);
      if (rank.tensors[static_cast<size_t>(b)] != tensor) continue;
      if (buffer.kind() != v1::SCRATCH && buffer.kind() != v1::HOST_INPUT) continue;
      const int defined = Definition(rank, b);
      if (defined < 0) continue;
      if (buffer.partial_sum()) {
        // Several of one rank are those of micro-batches.
        if (rank.summed[static_cast<size_t>(b)] < 0 || ++summed > 1) {
          partial = true;
          continue;
        }
      }
      parts.push_back(
          {static_cast<int>(r), b, defined + 1, Computes(rank.program->instructions(defined))});
    }
    if (summed > 1) parts.clear();
  }
  if (!parts.empty()) return Choose(what, std::move(parts));
  if (partial) {
    return absl::FailedPreconditionError(
        absl::StrCat(what,
                     " cannot be read with this plan: each rank or micro-batch has its own "
                     "addend of it; replay with a plan for one worker"));
  }
  return absl::NotFoundError(absl::StrCat(what, " is not computed in a step"));
}

absl::StatusOr<ProbePoints::Places> ProbePoints::ChooseKept(const std::string& what,
                                                            const std::string& tensor,
                                                            v1::BufferKind kind) const {
  std::vector<Part> parts;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const Rank& rank = ranks_[r];
    for (size_t b = 0; b < rank.tensors.size(); ++b) {
      if (rank.tensors[b] != tensor) continue;
      if (rank.program->buffers(static_cast<int>(b)).kind() != kind) continue;
      parts.push_back({static_cast<int>(r), static_cast<int>(b), 0, true});
    }
  }
  if (parts.empty()) return absl::NotFoundError(absl::StrCat(what, " is not there"));
  return Choose(what, std::move(parts));
}

absl::StatusOr<ProbePoints::Places> ProbePoints::Value(const std::string& asked) const {
  const std::string& name = ValueOf(asked);
  if (!values_.contains(name) && parameters_.contains(name)) return Parameter(name);
  if (!values_.contains(name)) {
    std::set<std::string> names(values_);
    for (const auto& [output, value] : outputs_) names.insert(output);
    return absl::NotFoundError(NoSuchTensor("value", name, names));
  }
  absl::StatusOr<Places> places = ChooseComputed(absl::StrCat("value(", name, ")"), name);
  if (!absl::IsFailedPrecondition(places.status())) return places;
  std::optional<Places> addends = ReportedAddends(name);
  return addends.has_value() ? *std::move(addends) : places;
}

std::optional<ProbePoints::Places> ProbePoints::ReportedAddends(const std::string& value) const {
  std::string report;  // a value may have several, of equal addends
  Places places(ranks_.size());
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const v1::Program& program = *ranks_[r].program;
    for (int i = 0; i < program.instructions_size(); ++i) {
      const v1::ReportInstruction& reported = program.instructions(i).report();
      if (!program.instructions(i).has_report()) continue;
      if (ranks_[r].tensors[static_cast<size_t>(reported.buffer())] != value) continue;
      if (report.empty()) report = reported.name();
      if (reported.name() != report) continue;
      v1::ProbePoint* point = places[r].add_points();
      point->set_buffer(reported.buffer());
      point->set_instructions(i + 1);
      places[r].set_adds_up(true);
    }
  }
  if (report.empty()) return std::nullopt;
  return places;
}

std::string ProbePoints::GradientTensor(const std::string& value) const {
  const std::string sum = absl::StrCat(value, kGradSuffix);
  if (tensors_.contains(sum)) return sum;
  // With one reader, the gradient has that reader's name, too.
  const std::string prefix = absl::StrCat(sum, "@");
  for (auto it = tensors_.lower_bound(prefix); it != tensors_.end(); ++it) {
    return absl::StartsWith(*it, prefix) ? *it : "";
  }
  return "";
}

void ProbePoints::DivideByLossScale(Places* places) const {
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if ((*places)[r].points().empty() || !ranks_[r].program->optimizer().has_loss_scale()) continue;
    for (size_t b = 0; b < ranks_[r].tensors.size(); ++b) {
      if (ranks_[r].tensors[b] == kLossScaleState) {
        (*places)[r].set_loss_scale(static_cast<int32_t>(b));
      }
    }
  }
}

absl::StatusOr<ProbePoints::Places> ProbePoints::Gradient(const std::string& asked) const {
  const std::string& name = gradients_.contains(asked) ? asked : ValueOf(asked);
  if (!gradients_.contains(name)) {
    return absl::NotFoundError(NoSuchTensor("gradient of", name, gradients_));
  }
  const std::string what = absl::StrCat("grad(", name, ")");
  absl::StatusOr<Places> places;
  if (parameters_.contains(name)) {
    std::vector<Part> parts;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const v1::Program& program = *ranks_[r].program;
      for (int i = 0; i < program.instructions_size(); ++i) {
        const v1::Instruction& instruction = program.instructions(i);
        if (!instruction.has_update() || instruction.update().has_result()) continue;
        const auto parameter = static_cast<size_t>(instruction.update().parameter());
        if (ranks_[r].tensors[parameter] != name) continue;
        // Updates do not change gradients.
        parts.push_back({static_cast<int>(r), instruction.update().gradient(), i + 1, true});
      }
    }
    places = Choose(what, std::move(parts));
  } else {
    const auto other = gradients_of_.find(name);
    places =
        ChooseComputed(what, GradientTensor(other == gradients_of_.end() ? name : other->second));
  }
  if (places.ok()) DivideByLossScale(&*places);
  return places;
}

absl::StatusOr<ProbePoints::Places> ProbePoints::Parameter(const std::string& name) const {
  if (!parameters_.contains(name)) {
    return absl::NotFoundError(NoSuchTensor("parameter", name, parameters_));
  }
  return ChooseKept(absl::StrCat("param(", name, ")"), name, v1::PARAMETER_SHARD);
}

absl::StatusOr<ProbePoints::Places> ProbePoints::Update(const std::string& name) const {
  absl::StatusOr<Places> places = Parameter(name);
  if (!places.ok()) return places;
  for (size_t r = 0; r < places->size(); ++r) {
    v1::RankProbe& probe = (*places)[r];
    *probe.mutable_minus() = probe.points();
    for (v1::ProbePoint& point : *probe.mutable_points()) {
      point.set_instructions(ranks_[r].program->instructions_size());
    }
  }
  return places;
}

absl::StatusOr<ProbePoints::Places> ProbePoints::State(const std::string& parameter,
                                                       const std::string& slot) const {
  const std::string name = absl::StrCat(parameter, ".", slot);
  if (!states_.contains(name)) {
    return absl::NotFoundError(
        parameters_.contains(parameter)
            ? NoSuchTensor(absl::StrCat("optimizer state of '", parameter, "' named"), slot,
                           states(parameter))
            : NoSuchTensor("parameter", parameter, parameters_));
  }
  return ChooseKept(absl::StrCat("state(", parameter, ", ", slot, ")"), name, v1::OPTIMIZER_STATE);
}

absl::StatusOr<ProbePoints::Places> ProbePoints::Batch(const std::string& column) const {
  std::vector<Part> parts;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const v1::Program& program = *ranks_[r].program;
    for (int i = 0; i < program.instructions_size(); ++i) {
      const v1::Instruction& instruction = program.instructions(i);
      if (!instruction.has_load_batch() || instruction.load_batch().column() != column) continue;
      parts.push_back({static_cast<int>(r), instruction.load_batch().buffer(), i + 1, true});
    }
  }
  if (parts.empty()) return absl::NotFoundError(NoSuchTensor("column", column, columns_));
  return Choose(absl::StrCat("batch(", column, ")"), std::move(parts));
}

}  // namespace espalier
