// How one tensor is spread over devices: which device holds which box of it, as what.
//
// A layout follows from an operator's configuration (pcg/node_config.h) and its SplitRule: one shard per
// part of the operator, in the order of its parts. Parts along an axis that the tensor does not
// follow hold the same box: of an operand they are replicas (each has the full value), of a result
// partial sums (the value is their sum). Differentiation swaps the two: the gradient of a
// replicated operand is a partial sum, the gradient of a partial sum is replicated. That is Dual.
// An operand that is read through windows (op_def.h, Halo) is spread over boxes that overlap; the
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

// Of boxes that overlap: each has the full value of its elements, or a part of their sum.
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

// A Halo of the operand, with the extent of its axis.
struct OperandHalo {
  Halo halo;
  int64_t axis_size = 1;
};

// The halos of input `input`.
std::vector<OperandHalo> HalosOf(const SplitRule& rule, int input);

// What part `part` of `parts` reads of a dimension of `extent`, as [first, second). The first part
// begins at 0, the last one ends at `extent`, and nothing lies between two parts: what no window
// reaches has a gradient too.
std::pair<int64_t, int64_t> WindowedPart(const OperandHalo& operand, int64_t extent, int parts,
                                         int part);

// The layout of a tensor with `dims` of which dimension d follows axis axis_of_dim[d] (kNotSplit:
// none). degrees: parts per axis; devices: one per part, mixed radix, first axis outermost. Every
// dimension must be divisible by the degree of its axis, but those of `halos`. `output`: parts that
// hold the same box are partial sums.
Layout OperandLayout(const Dims& dims, const std::vector<int>& axis_of_dim,
                     const std::vector<int>& degrees, const std::vector<int>& devices, bool output,
                     const std::vector<OperandHalo>& halos = {});

// Every device has all of it.
Layout ReplicatedLayout(const Dims& dims, const std::vector<int>& devices);

// Replicas become partial sums and the other way round; so do overlapping boxes.
Layout Dual(const Layout& layout);

// Boxes of fewer elements are not worth cutting: each would cost a collective of its own.
constexpr int64_t kMinShardedElements = 1024;

// Every box cut into one piece for each of its replicas, along its first dimension that can be:
// none are left. Shards keep their order and device; the pieces of a box follow each other in the
// order of their devices, as collectives want them. `layout` itself where there is nothing to cut,
// or too little.
Layout Sharded(const Layout& layout);

// The common box, if there is one with elements in it.
std::optional<Region> Intersect(const Region& a, const Region& b);

// `box` (inside `shard`) in coordinates of the shard.
Dims StartWithin(const Region& shard, const Region& box);

// "split 0x2, partial x2 on 0,1": for error messages.
std::string ToString(const Layout& layout);

// Numbers layouts, so that equality and the keys of caches are integers. Ids and references stay
// valid.
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
