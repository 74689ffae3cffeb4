#include "server/replay/checkpoint_answers.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ops/cpu/layout/copy_box.h"
#include "ops/graph/graph_proto.h"
#include "ops/graph/name_pattern.h"
#include "ops/probe/reduce.h"
#include "planner/lowering/probe_points.h"
#include "server/replay/step_answers.h"

namespace espalier {
namespace {

// The names of a checkpoint's tensors, as those of ProbePoints.
class StateNames {
 public:
  explicit StateNames(const StateTensors& tensors) {
    for (const auto& [name, tensor] : tensors.tensors()) {
      (tensor.is_state ? states_ : parameters_).insert(name);
    }
  }

  std::vector<ProbeTarget> Matching(const ProbeTarget& pattern) const {
    std::vector<ProbeTarget> matching;
    for (const std::string& name : parameters_) {
      if (!MatchesPattern(pattern.name, name)) continue;
      ProbeTarget one = pattern;
      one.name = name;
      if (pattern.kind == ProbeTarget::kParam) {
        matching.push_back(std::move(one));
        continue;
      }
      for (const std::string& slot : SlotsOf(name)) {
        if (!MatchesPattern(pattern.slot, slot)) continue;
        one.slot = slot;
        matching.push_back(one);
      }
    }
    return matching;
  }

  // The error if Matching has none.
  absl::Status NothingMatches(const ProbeTarget& pattern) const {
    if (pattern.kind == ProbeTarget::kParam) return espalier::NothingMatches(pattern, parameters_);
    std::set<std::string> names;
    for (const std::string& parameter : parameters_) {
      for (const std::string& slot : SlotsOf(parameter)) {
        names.insert(absl::StrCat(parameter, ", ", slot));
      }
    }
    return espalier::NothingMatches(pattern, names);
  }

  absl::Status Check(const ProbeTarget& target) const {
    if (!parameters_.contains(target.name)) {
      return absl::NotFoundError(NoSuchTensor("parameter", target.name, parameters_));
    }
    if (target.kind == ProbeTarget::kParam) return absl::OkStatus();
    const std::set<std::string> slots = SlotsOf(target.name);
    if (slots.contains(target.slot)) return absl::OkStatus();
    return absl::NotFoundError(NoSuchTensor(
        absl::StrCat("optimizer state of '", target.name, "' named"), target.slot, slots));
  }

 private:
  std::set<std::string> SlotsOf(const std::string& parameter) const {
    std::set<std::string> slots;
    const std::string prefix = absl::StrCat(parameter, ".");
    for (auto it = states_.lower_bound(prefix);
         it != states_.end() && absl::StartsWith(*it, prefix); ++it) {
      slots.insert(it->substr(prefix.size()));
    }
    return slots;
  }

  std::set<std::string> parameters_, states_;
};

TensorSpec SpecOfBuffer(const v1::Buffer& buffer) {
  const v1::TensorSpec& message = buffer.spec();
  TensorSpec spec = TensorSpec::Whole(
      {FromProto(message.dtype()), Dims(message.dims().begin(), message.dims().end())});
  if (!message.offset().empty())
    spec.offset.assign(message.offset().begin(), message.offset().end());
  if (!message.global().empty())
    spec.global.assign(message.global().begin(), message.global().end());
  return spec;
}

// Reduces one rank's parts of a tensor, as the rank does (worker/trainer/probe_reader.h).
absl::StatusOr<v1::ProbePart> ReduceParts(const std::vector<char>& whole, const TensorSpec& spec,
                                          const std::vector<TensorSpec>& parts,
                                          const Reduction& reduction) {
  const bool only = parts.size() == 1 && parts[0].dims == spec.dims;
  PartReducer reducer(reduction, spec.dtype, spec.dims, /*adds_up=*/false, only);
  std::vector<char> box;
  for (const TensorSpec& part : parts) {
    if (part.dtype != spec.dtype || part.global != spec.dims) {
      return absl::InvalidArgumentError(absl::StrCat("it is ", ToString(spec.type()), ", not ",
                                                     ToString({part.dtype, part.global}),
                                                     ", which the job's programs have"));
    }
    const char* elements = whole.data();
    if (part.dims != spec.dims) {
      box.resize(static_cast<size_t>(part.bytes()));
      CopyBoxOnHost({whole.data(), box.data(), spec.dtype, spec.dims, part.dims, part.offset,
                     Dims(part.dims.size(), 0), part.dims, false});
      elements = box.data();
    }
    // A view has no constant elements; nothing writes to them.
    absl::Status s = reducer.Add({const_cast<char*>(elements), part});
    if (!s.ok()) return s;
  }
  return reducer.Take();
}

}  // namespace

bool AnsweredByCheckpoint(const ProbeExpression& probe) {
  return std::all_of(probe.targets.begin(), probe.targets.end(), [](const ProbeTarget& target) {
    return target.kind == ProbeTarget::kParam || target.kind == ProbeTarget::kState;
  });
}

std::string TensorOf(const ProbeTarget& target) {
  return target.kind == ProbeTarget::kState ? absl::StrCat(target.name, ".", target.slot)
                                            : target.name;
}

absl::StatusOr<CheckpointAnswers> CheckpointAnswers::Make(
    const StateTensors& tensors, const std::vector<ProbeExpression>& probes) {
  const StateNames names(tensors);
  CheckpointAnswers answers;
  FoundProbes& found = answers.found_;
  found.by_rank.resize(1);
  int number = 0;
  for (const ProbeExpression& probe : probes) {
    if (!AnsweredByCheckpoint(probe)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", ToString(probe), "' is not in checkpoints, which have param(...) and state(...)"));
    }
    std::vector<ProbeExpression> named;
    if (probe.targets.size() == 1 && probe.targets[0].has_wildcard()) {
      for (ProbeTarget& target : names.Matching(probe.targets[0])) {
        named.push_back({{std::move(target)}, probe.reduction});
      }
      if (named.empty()) {
        found.lacking.emplace_back(ToString(probe), names.NothingMatches(probe.targets[0]));
      }
      std::erase_if(named, [&](const ProbeExpression& one) { return IsAmong(one, found); });
    } else {
      named.push_back(probe);
    }
    for (const ProbeExpression& one : named) {
      absl::Status missing;
      for (const ProbeTarget& target : one.targets) missing.Update(names.Check(target));
      if (!missing.ok()) {
        found.lacking.emplace_back(ToString(one), missing);
        continue;
      }
      NamedProbe& result = found.probes.emplace_back(NamedProbe{one, {}, {}});
      for (const ProbeTarget& target : one.targets) {
        const std::string tensor = TensorOf(target);
        const StateTensors::Tensor& facts = tensors.tensors().at(tensor);
        Source& source = answers.sources_[tensor];
        source.parts = {{0, {TensorSpec::Whole({facts.dtype, facts.global})}}};
        source.reductions.emplace(number, one.reduction);
        found.by_rank[0].emplace_back().set_probe(number);
        result.numbers.push_back(number++);
        result.adds_up.push_back(false);
      }
    }
  }
  return answers;
}

CheckpointAnswers CheckpointAnswers::Make(const FoundProbes& probes,
                                          const std::vector<v1::Program>& programs) {
  CheckpointAnswers answers;
  FoundProbes& found = answers.found_;
  found.by_rank.resize(programs.size());
  int number = 0;
  for (const NamedProbe& probe : probes.probes) {
    if (!AnsweredByCheckpoint(probe.probe)) continue;
    NamedProbe& result = found.probes.emplace_back(NamedProbe{probe.probe, {}, {}});
    for (size_t t = 0; t < probe.numbers.size(); ++t) {
      Source& source = answers.sources_[TensorOf(probe.probe.targets[t])];
      source.parts.clear();  // of another probe of the tensor: the same
      for (size_t r = 0; r < programs.size(); ++r) {
        for (const v1::RankProbe& of_rank : probes.by_rank[r]) {
          if (of_rank.probe() != probe.numbers[t]) continue;
          for (const v1::ProbePoint& point : of_rank.points()) {
            source.parts[r].push_back(SpecOfBuffer(programs[r].buffers(point.buffer())));
          }
          found.by_rank[r].emplace_back().set_probe(number);
        }
      }
      source.reductions.emplace(number, probe.probe.reduction);
      result.numbers.push_back(number++);
      result.adds_up.push_back(false);
    }
  }
  return answers;
}

absl::StatusOr<std::vector<v1::HistoryRow>> CheckpointAnswers::Read(StateTensors& tensors,
                                                                    int64_t steps_done) const {
  std::map<size_t, v1::ProbeResults> by_rank;
  for (const auto& [name, source] : sources_) {
    const auto annotate = [&name = name](const absl::Status& status) {
      return absl::Status(status.code(), absl::StrCat("tensor '", name, "': ", status.message()));
    };
    const auto tensor = tensors.tensors().find(name);
    if (tensor == tensors.tensors().end()) {
      return annotate(absl::InvalidArgumentError("the checkpoint does not have it"));
    }
    const TensorSpec spec = TensorSpec::Whole({tensor->second.dtype, tensor->second.global});
    absl::StatusOr<std::vector<char>> bytes = tensors.Read(name);
    if (!bytes.ok()) return bytes.status();
    for (const auto& [rank, parts] : source.parts) {
      for (const auto& [number, reduction] : source.reductions) {
        absl::StatusOr<v1::ProbePart> part = ReduceParts(*bytes, spec, parts, reduction);
        if (!part.ok()) return annotate(part.status());
        v1::RankProbeResult* result = by_rank[rank].add_results();
        result->set_probe(number);
        *result->mutable_part() = *std::move(part);
      }
    }
  }
  if (absl::Status s = tensors.Verify(); !s.ok()) return s;
  StepAnswers answers(&found_);
  for (auto& [rank, results] : by_rank) {
    results.set_step(steps_done);
    absl::StatusOr<std::vector<v1::HistoryRow>> rows = answers.Add(rank, results);
    if (!rows.ok() || !rows->empty()) return rows;
  }
  return std::vector<v1::HistoryRow>();
}

absl::StatusOr<std::vector<v1::HistoryRow>> CheckpointAnswers::Read(ObjectReader& store,
                                                                    const std::string& folder,
                                                                    int64_t steps_done) const {
  absl::StatusOr<std::unique_ptr<CheckpointTensors>> tensors =
      CheckpointTensors::Open(store, folder, steps_done);
  if (!tensors.ok()) return tensors.status();
  return Read(**tensors, steps_done);
}

}  // namespace espalier
