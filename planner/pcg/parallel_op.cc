#include "planner/pcg/parallel_op.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace espalier {

using Kind = v1::ParallelOperator;

std::vector<ParallelOp> ParallelOpsBetween(const Layout& from, const Layout& to) {
  std::vector<ParallelOp> ops;
  auto add = [&](Kind::Kind kind, int dimension, int degree) {
    if (degree > 1) ops.push_back({kind, dimension, -1, degree, {}});
  };
  const int rank = static_cast<int>(from.dims.size());
  const int partials = std::gcd(from.partials, to.partials);
  const int replicas = std::gcd(from.replicas, to.replicas);
  // Dropping replicas needs no operator; partial sums are never created.
  add(Kind::REDUCE, -1, from.partials / partials);
  std::vector<ParallelOp> combines, partitions;
  for (int d = 0; d < rank; ++d) {
    const int common = std::gcd(from.degrees[d], to.degrees[d]);
    if (from.degrees[d] > common) {
      combines.push_back({Kind::COMBINE, d, -1, from.degrees[d] / common, {}});
    }
    if (to.degrees[d] > common) {
      partitions.insert(partitions.begin(), {Kind::PARTITION, d, -1, to.degrees[d] / common, {}});
    }
  }
  if (combines.size() == 1 && partitions.size() == 1 &&
      combines[0].degree == partitions[0].degree &&
      combines[0].dimension != partitions[0].dimension) {
    ops.push_back(
        {Kind::ALL_TO_ALL, partitions[0].dimension, combines[0].dimension, combines[0].degree, {}});
  } else {
    ops.insert(ops.end(), combines.begin(), combines.end());
    ops.insert(ops.end(), partitions.begin(), partitions.end());
  }
  add(Kind::REPLICATE, -1, to.replicas / replicas);
  if (from.overlap != to.overlap) {
    for (int d = 0; d < rank; ++d) {
      const Layout& windowed = to.overlap == Overlap::kNone ? from : to;
      if (std::any_of(windowed.shards.begin(), windowed.shards.end(), [&](const Shard& shard) {
            return shard.region.size[d] * windowed.degrees[d] != windowed.dims[d];
          })) {
        add(Kind::EXCHANGE_HALO, d, windowed.degrees[d]);
      }
    }
  }

  std::vector<int> devices;
  for (const Shard& shard : to.shards) devices.push_back(shard.device);
  if (ops.empty()) {
    std::vector<int> before;
    for (const Shard& shard : from.shards) before.push_back(shard.device);
    if (before != devices) {
      ops.push_back({Kind::MOVE, -1, -1, static_cast<int>(devices.size()), {}});
    }
  }
  for (ParallelOp& op : ops) op.devices = devices;
  return ops;
}

ParallelOp Dual(const ParallelOp& op) {
  ParallelOp dual = op;
  dual.devices.clear();
  switch (op.kind) {
    case Kind::PARTITION:
      dual.kind = Kind::COMBINE;
      break;
    case Kind::COMBINE:
      dual.kind = Kind::PARTITION;
      break;
    case Kind::REPLICATE:
      dual.kind = Kind::REDUCE;
      break;
    case Kind::REDUCE:
      dual.kind = Kind::REPLICATE;
      break;
    case Kind::ALL_TO_ALL:
      std::swap(dual.dimension, dual.source_dimension);
      break;
    default:
      break;
  }
  return dual;
}

}  // namespace espalier
