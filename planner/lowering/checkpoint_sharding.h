// Which rank writes what into checkpoints.
#pragma once

#include <vector>

#include "espalier/v1/program.pb.h"

namespace espalier {

// Marks the parameters and optimiser states that another rank saves, so that every region of them
// is saved by one rank, whatever replicas there are, and no rank writes much more than the others.
// Regions that lie on a few ranks only keep together what one rank reads: a small tensor that all
// have is not spread over ranks which have enough of their own to write, as whoever reads some of a
// shard has to read all of it, for its hash.
void ShardCheckpoints(std::vector<v1::Program>* programs);

}  // namespace espalier
