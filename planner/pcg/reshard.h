// Plans the resharding of a tensor from one layout to another. Lowering turns the plan into
// instructions, the simulator into time.
//
// Source and target shards that overlap form independent groups. A group that matches a collective
// becomes that collective. All others become copies and point-to-point transfers; partial sums are
// added in the order of their index, so every replica gets the same bits.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/program.pb.h"
#include "planner/pcg/layout.h"

namespace espalier {

// A box of source shard `source` that goes into target shard `target`. Both may be on one device.
struct ReshardPiece {
  int source = 0;
  int target = 0;
  Region box;               // in the whole tensor
  bool accumulate = false;  // added to what earlier pieces wrote there
};

struct ReshardCollective {
  v1::CollectiveInstruction::Kind kind = v1::CollectiveInstruction::KIND_UNSPECIFIED;
  std::vector<int> ranks;    // ascending
  std::vector<int> sources;  // source shard of each rank
  std::vector<int> targets;  // target shard of each rank
  // The parts are not contiguous in memory in the order of the ranks: `pack` copies input boxes
  // together first, `unpack` copies output boxes apart afterwards.
  bool pack = false;
  bool unpack = false;
  int64_t elements = 0;  // of one rank's input
};

struct ReshardPlan {
  std::vector<int> alias;  // by target shard: the source shard whose buffer is reused, or -1
  std::vector<ReshardCollective> collectives;
  std::vector<ReshardPiece> pieces;  // ordered by target, then box, then partial index

  bool all_reduce_only() const;
};

// Returns the number of elements that cross devices when `plan`, made for these layouts, runs once.
int64_t ElementsMoved(const ReshardPlan& plan, const Layout& from, const Layout& to);

// Returns Internal if `to` has partial sums (no operator reads them) or `from` does not cover it.
absl::StatusOr<ReshardPlan> PlanReshard(const Layout& from, const Layout& to);

// Returns whether `parts`, in this order, are consecutive ranges of the memory of dense `whole`.
bool IsRankMajor(const std::vector<Region>& parts, const Region& whole);

}  // namespace espalier
