// The distribution of one tensor over devices: which device holds which box of it, and whether that
// box is a replica or a partial sum. (GSPMD and PyTorch's DTensor call this a sharding.)
//
// A layout follows from an operator's configuration (pcg/node_config.h) and its SplitRule: one
// shard per part of the operator, in the order of the parts. Parts along an axis that the tensor
// does not follow hold the same box. For an operand these are replicas (each has the full value);
// for a result they are partial sums (the value is their sum). Differentiation swaps the two: the
// gradient of a replicated operand is a partial sum, and the gradient of a partial sum is
// replicated. See Dual.
//
// An operand that is read through windows (Halo in op_def.h) is split into boxes that overlap. The
// elements of its dual are sums over the boxes that hold them.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "ops/schema/op_def.h"
#include "ops/tensor/shape.h"

namespace espalier {

struct Shard {
  int device = 0;
  Region region;
  int replica = 0;
  int partial = 0;
  bool operator==(const Shard&) const = default;
};

// What overlapping boxes hold: the full value of their elements, or a part of the sum.
enum class Overlap { kNone, kShared, kSummed };

struct Layout {
  Dims dims;                 // of the whole tensor
  std::vector<int> degrees;  // parts per dimension
  int replicas = 1;
  int partials = 1;
  Overlap overlap = Overlap::kNone;
  std::vector<Shard> shards;  // one per part of the operator, all on different devices

  bool operator==(const Layout&) const = default;
};

// A Halo of the operand and the extent of its axis.
struct OperandHalo {
  Halo halo;
  int64_t axis_size = 1;
};

// Returns the halos of input `input`.
std::vector<OperandHalo> HalosOf(const SplitRule& rule, int input);

// Returns the range [first, second) of a dimension of `extent` that part `part` of `parts` reads.
// The first part begins at 0, the last ends at `extent`, and there are no gaps between parts:
// elements that no window reaches have a gradient, too.
std::pair<int64_t, int64_t> WindowedPart(const OperandHalo& operand, int64_t extent, int parts,
                                         int part);

// Returns the layout of a tensor of shape `dims` whose dimension d follows axis axis_of_dim[d]
// (kNotSplit: none). `degrees`: parts per axis. `devices`: one per part, mixed radix, first axis
// outermost. If `output`, parts that hold the same box are partial sums. REQUIRES: every dimension
// without a halo is divisible by the degree of its axis.
Layout OperandLayout(const Dims& dims, const std::vector<int>& axis_of_dim,
                     const std::vector<int>& degrees, const std::vector<int>& devices, bool output,
                     const std::vector<OperandHalo>& halos = {});

// Returns the layout in which every device holds the whole tensor.
Layout ReplicatedLayout(const Dims& dims, const std::vector<int>& devices);

// Returns the layout of the gradient: replicas become partial sums and partial sums replicas;
// overlapping boxes swap kShared and kSummed.
Layout Dual(const Layout& layout);

// Smaller boxes are not sharded: each would cost a collective of its own.
constexpr int64_t kMinShardedElements = 1024;

// Returns `layout` with each box split among its replicas (ZeRO), along its first divisible
// dimension, so that no replicas are left. Shards keep their order and device; the pieces of a box
// follow the order of their devices, as collectives require. Returns `layout` unchanged if it has
// no replicas or its boxes are too small.
Layout Sharded(const Layout& layout);

// Returns the intersection, or nothing if it is empty.
std::optional<Region> Intersect(const Region& a, const Region& b);

// Returns the start of `box`, which lies inside `shard`, in the shard's coordinates.
Dims StartWithin(const Region& shard, const Region& box);

// For error messages: "split 0x2, partial x2 on 0,1".
std::string ToString(const Layout& layout);

// Interns layouts, so that comparisons and cache keys are integers. Ids and references stay valid.
class LayoutTable {
 public:
  int Intern(const Layout& layout);
  const Layout& Get(int id) const { return layouts_[id]; }
  int Dual(int id);
  int Sharded(int id);
  int size() const { return static_cast<int>(layouts_.size()); }

 private:
  std::deque<Layout> layouts_;
  std::deque<int> duals_, sharded_;  // -1: not yet known
  absl::flat_hash_map<std::string, int> ids_;
};

}  // namespace espalier
