// How a tensor gets from one layout into another: the one description that lowering turns into
// instructions and the simulator into time.
//
// Source and target shards that overlap form groups that have nothing to do with each other. A
// group that is one of the known collectives becomes one; all others are copies and point-to-point
// transfers, with partial sums added up in the order of their index, so that every replica gets the
// same bits.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/pcg/layout.h"
#include "espalier/v1/program.pb.h"

namespace espalier {

// A box of source shard `source` that goes into target shard `target`. Local if they are on one
// device.
struct ReshardPiece {
  int source = 0;
  int target = 0;
  Region box;               // in the whole tensor
  bool accumulate = false;  // added to what earlier pieces left there
};

struct ReshardCollective {
  v1::CollectiveInstruction::Kind kind = v1::CollectiveInstruction::KIND_UNSPECIFIED;
  std::vector<int> ranks;    // ascending
  std::vector<int> sources;  // source shard of each rank
  std::vector<int> targets;  // target shard of each rank
  // Parts do not follow each other in memory in the order of the ranks: input boxes are copied
  // together first, output boxes apart afterwards.
  bool pack = false;
  bool unpack = false;
  int64_t elements = 0;  // of one rank's input
};

struct ReshardPlan {
  std::vector<int> alias;  // per target shard: the source shard whose buffer serves as it is, or -1
  std::vector<ReshardCollective> collectives;
  std::vector<ReshardPiece> pieces;  // by target, then by place, then by partial index

  bool all_reduce_only() const;
};

// Elements that cross from one device to another when `plan`, made for these layouts, runs once.
int64_t ElementsMoved(const ReshardPlan& plan, const Layout& from, const Layout& to);

// Internal if `to` has partial sums (no operator needs them) or `from` does not cover it.
absl::StatusOr<ReshardPlan> PlanReshard(const Layout& from, const Layout& to);

// Whether `parts`, in this order, are consecutive stretches of the memory of dense `whole`.
bool IsRankMajor(const std::vector<Region>& parts, const Region& whole);

}  // namespace espalier
