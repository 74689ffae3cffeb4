// Chooses on which other hosts copies of checkpoint shards are kept (espalier/v1/shards.proto).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "espalier/v1/worker.pb.h"
#include "server/membership/worker_registry.h"

namespace espalier {

// Of one rank of an attempt; see v1::LoadProgramRequest.
struct ShardPlaces {
  std::optional<v1::ShardPeer> keep_on;
  std::vector<v1::ShardPeer> peers;
};

// Returns them by rank. `ranks` are the attempt's workers, `living` all workers that are to stay.
// Ranks of one host keep their copies on the same other one, the host of the next rank that has
// another, so that each host keeps those of one other; an idle worker's host only if the attempt
// has no second one. A host is the host part of its workers' addresses.
std::vector<ShardPlaces> ChooseShardPlaces(const std::vector<Member>& ranks,
                                           const std::vector<Member>& living,
                                           const std::string& job_id);

// What the ranks read a checkpoint from, for the job's log; empty if none of them has copies.
std::string DescribeShardSources(const std::vector<v1::ShardSources>& by_rank);

}  // namespace espalier
