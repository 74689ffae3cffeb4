// Emitter: resharding.
#include "absl/strings/str_cat.h"
#include "planner/lowering/emitter.h"

namespace espalier {
namespace {

using Collective = v1::CollectiveInstruction;

Dims WithLeading(int64_t first, const Dims& rest) {
  Dims out = {first};
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

// Views `buffer` with a leading dimension of 1, so that its boxes have the rank of a staging
// buffer's.
int WithLeadingOne(RankProgram* rank, int buffer) {
  const TensorSpec spec = rank->spec(buffer);
  return rank->AddAlias(absl::StrCat(rank->buffer(buffer)->name(), ".view"),
                        TensorSpec::Whole({spec.dtype, WithLeading(1, spec.dims)}), buffer);
}

}  // namespace

bool Emitter::ReadOnceElsewhere(ValueId value, int base) {
  int other = -1;
  for (int s : structure_.slots_of_value[value]) {
    const int layout = Resolved(structure_.slots[s].required);
    if (layout == base || (other >= 0 && layout != other)) return false;
    other = layout;
  }
  for (const auto& [name, reported] : structure_.reports) {
    if (reported == value) return false;
  }
  return true;
}

absl::Status Emitter::Reshard(ValueId value, int base, int target, const std::string& node) {
  absl::StatusOr<const ReshardPlan*> plan = table_.Reshard(base, target);
  if (!plan.ok()) {
    return absl::InternalError(
        absl::StrCat("node '", node, "', tensor '", NameOf(value), "': ", plan.status().message()));
  }
  auto found = instances_.find({value, base});
  if (found == instances_.end()) {
    return absl::InternalError(absl::StrCat("node '", node, "' reads tensor '", NameOf(value),
                                            "', which nothing has computed"));
  }
  const Instance source = found->second;
  const Layout &from = LayoutOf(base), &to = LayoutOf(target);
  Instance result = instances_[{value, target}];
  result.resize(to.shards.size(), -1);
  for (size_t t = 0; t < result.size(); ++t) {
    if ((*plan)->alias[t] >= 0) result[t] = source[(*plan)->alias[t]];
  }
  const bool in_place = ReadOnceElsewhere(value, base);
  for (const ReshardCollective& c : (*plan)->collectives) {
    if (structure_.Dynamic(value) == v1::STATIC || !(c.pack || c.unpack)) {
      EmitCollective(value, c, from, to, source, &result, in_place, node);
      continue;
    }
    // Rows would not be dimension 0 of the gathered buffer.
    if (c.kind != Collective::ALL_GATHER) {
      return absl::UnimplementedError(
          absl::StrCat("node '", node, "' needs tensor '", NameOf(value),
                       "', whose length changes from step to step, cut in another way than it was "
                       "computed"));
    }
    for (int target : c.targets) {
      for (int part : c.sources) {
        const Region box = *Intersect(from.shards[part].region, to.shards[target].region);
        EmitPiece(value, {part, target, box, false}, from, to, source, &result, node);
      }
    }
  }
  for (const ReshardPiece& piece : (*plan)->pieces) {
    EmitPiece(value, piece, from, to, source, &result, node);
  }
  instances_[{value, target}] = std::move(result);
  return absl::OkStatus();
}

void Emitter::EmitCollective(ValueId value, const ReshardCollective& c, const Layout& from,
                             const Layout& to, const Instance& source, Instance* target,
                             bool in_place, const std::string& node) {
  const uint64_t tag = next_tag_++;
  const DType dtype = structure_.graph().value(value).type.dtype;
  const int n = static_cast<int>(c.ranks.size());
  for (int r = 0; r < n; ++r) {
    RankProgram& rank = ranks_[c.ranks[r]];
    const Shard& in_shard = from.shards[c.sources[r]];
    const Shard& out_shard = to.shards[c.targets[r]];
    int input = source[c.sources[r]];
    int& result = (*target)[c.targets[r]];
    // Box of this rank's input for rank i, and of its output from rank i.
    auto sent = [&](int i) { return *Intersect(in_shard.region, to.shards[c.targets[i]].region); };
    auto received = [&](int i) {
      return *Intersect(from.shards[c.sources[i]].region, out_shard.region);
    };
    if (c.kind == Collective::ALL_REDUCE && in_place && rank.owns_memory(input) &&
        rank.kind(input) == v1::SCRATCH) {
      result = input;
    } else if (result < 0) {
      result = AddBuffer(&rank, value, NameOf(value), SpecOf(value, out_shard), v1::SCRATCH);
    }
    int output = result;
    if (c.pack) {
      const int view = WithLeadingOne(&rank, input);
      const TensorSpec spec = TensorSpec::Whole({dtype, WithLeading(n, sent(0).size)});
      input = rank.AddBuffer(absl::StrCat(NameOf(value), ".packed"), spec, v1::SCRATCH);
      for (int i = 0; i < n; ++i) {
        const Region box = sent(i);
        rank.Copy(node, view, input, WithLeading(0, StartWithin(in_shard.region, box)),
                  WithLeading(i, Dims(box.size.size(), 0)), WithLeading(1, box.size), false);
      }
    }
    if (c.unpack) {
      const TensorSpec spec = TensorSpec::Whole({dtype, WithLeading(n, received(0).size)});
      output = rank.AddBuffer(absl::StrCat(NameOf(value), ".gathered"), spec, v1::SCRATCH);
    }
    v1::CollectiveInstruction* collective = rank.Emit(node)->mutable_collective();
    collective->set_kind(c.kind);
    collective->set_group(rank.Group(c.ranks));
    collective->set_input(input);
    collective->set_output(output);
    collective->set_tag(tag);
    if (c.unpack) {
      const int view = WithLeadingOne(&rank, result);
      for (int i = 0; i < n; ++i) {
        const Region box = received(i);
        rank.Copy(node, output, view, WithLeading(i, Dims(box.size.size(), 0)),
                  WithLeading(0, StartWithin(out_shard.region, box)), WithLeading(1, box.size),
                  false);
      }
    }
  }
}

void Emitter::EmitPiece(ValueId value, const ReshardPiece& piece, const Layout& from,
                        const Layout& to, const Instance& source, Instance* target,
                        const std::string& node) {
  const Shard& in = from.shards[piece.source];
  const Shard& out = to.shards[piece.target];
  RankProgram& receiver = ranks_[out.device];
  int& result = (*target)[piece.target];
  if (result < 0) {
    result = AddBuffer(&receiver, value, NameOf(value), SpecOf(value, out), v1::SCRATCH);
  }
  const Dims from_start = StartWithin(in.region, piece.box);
  const Dims to_start = StartWithin(out.region, piece.box);
  int input = source[piece.source];
  if (in.device == out.device) {
    receiver.Copy(node, input, result, from_start, to_start, piece.box.size, piece.accumulate);
    return;
  }

  RankProgram& sender = ranks_[in.device];
  const TensorSpec box_spec = SpecOf(value, {out.device, piece.box});
  const Dims zero(piece.box.size.size(), 0);
  if (!(piece.box == in.region)) {
    const int staging =
        AddBuffer(&sender, value, absl::StrCat(NameOf(value), ".send"), box_spec, v1::SCRATCH);
    sender.Copy(node, input, staging, from_start, zero, piece.box.size, false);
    input = staging;
  }
  const uint64_t tag = next_tag_++;
  v1::SendInstruction* send = sender.Emit(node)->mutable_send();
  send->set_buffer(input);
  send->set_peer(out.device);
  send->set_tag(tag);

  const bool direct = piece.box == out.region && !piece.accumulate;
  const int arrived = direct ? result
                             : AddBuffer(&receiver, value, absl::StrCat(NameOf(value), ".receive"),
                                         box_spec, v1::SCRATCH);
  v1::ReceiveInstruction* receive = receiver.Emit(node)->mutable_receive();
  receive->set_buffer(arrived);
  receive->set_peer(in.device);
  receive->set_tag(tag);
  if (!direct) {
    receiver.Copy(node, arrived, result, zero, to_start, piece.box.size, piece.accumulate);
  }
}

}  // namespace espalier
