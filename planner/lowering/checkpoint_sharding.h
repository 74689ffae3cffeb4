// Decides which rank writes which parts of a checkpoint.
#pragma once

#include <set>
#include <vector>

#include "espalier/v1/program.pb.h"

namespace espalier {

// Marks the parameters and optimizer states that another rank saves, so that exactly one rank saves
// each region, whatever replicas there are, and ranks write similar amounts: of what steps change,
// and of the rest, which only the first checkpoint of an attempt writes. Regions that few ranks
// hold stay together as one rank reads them. A small tensor that all ranks hold is not spread over
// ranks with enough of their own to write: readers of part of a shard must read all of it to check
// its hash.
void ShardCheckpoints(std::vector<v1::Program>* programs);

// Returns the ranks that save something. The others may have nothing to do at all: then they are
// done with all steps long before these.
std::set<int> SavingRanks(const std::vector<v1::Program>& programs);

}  // namespace espalier
