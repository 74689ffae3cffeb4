// Parallel operators (as in Unity): the layout changes on an edge, as nodes of the parallel
// computation graph.
//
// From one layout to another, in this order: partial sums are reduced, dimensions combined (first
// to last), dimensions partitioned (last to first), replicas made. The gradient's edge runs from
// the dual of the second layout to the dual of the first, so it carries the duals of these nodes in
// reverse order.
#pragma once

#include <vector>

#include "espalier/v1/plan.pb.h"
#include "planner/pcg/layout.h"

namespace espalier {

struct ParallelOp {
  v1::ParallelOperator::Kind kind = v1::ParallelOperator::KIND_UNSPECIFIED;
  int dimension = -1;         // PARTITION, COMBINE; ALL_TO_ALL: the dimension split afterwards
  int source_dimension = -1;  // ALL_TO_ALL: the dimension split before
  int degree = 1;
  std::vector<int> devices;  // machine view: where the result lies

  // Ignores the devices: the dual's result lies where the operator's operand did.
  bool SameWork(const ParallelOp& other) const {
    return kind == other.kind && dimension == other.dimension &&
           source_dimension == other.source_dimension && degree == other.degree;
  }
};

std::vector<ParallelOp> ParallelOpsBetween(const Layout& from, const Layout& to);

// Maps PARTITION <-> COMBINE and REPLICATE <-> REDUCE; ALL_TO_ALL, EXCHANGE_HALO and MOVE run
// backwards. Leaves `devices` empty.
ParallelOp Dual(const ParallelOp& op);

}  // namespace espalier
