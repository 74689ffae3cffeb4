#include "server/jobs/shard_places.h"

#include <set>

#include "absl/strings/str_format.h"
#include "storage/shard_key.h"

namespace espalier {
namespace {

// Of which a rank asks one worker each: more would make loading longer than the store does.
constexpr size_t kMostPeers = 64;

std::string HostOf(const Member& member) {
  return member.address.substr(0, member.address.rfind(':'));
}

v1::ShardPeer PeerOf(const Member& member, const std::string& job_id) {
  v1::ShardPeer peer;
  peer.set_address(member.shards_address);
  peer.set_certificate(member.shards_certificate);
  peer.set_key(ShardKey(member.call_key, job_id));
  return peer;
}

}  // namespace

std::vector<ShardPlaces> ChooseShardPlaces(const std::vector<Member>& ranks,
                                           const std::vector<Member>& living,
                                           const std::string& job_id) {
  std::vector<ShardPlaces> places(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    std::vector<const Member*> others;
    for (size_t i = 1; i < ranks.size(); ++i) others.push_back(&ranks[(r + i) % ranks.size()]);
    for (const Member& member : living) others.push_back(&member);
    std::set<std::string> hosts = {HostOf(ranks[r])};
    for (const Member* const other : others) {
      if (other->shards_address.empty() || !hosts.insert(HostOf(*other)).second) continue;
      places[r].peers.push_back(PeerOf(*other, job_id));
      if (places[r].peers.size() == kMostPeers) break;
    }
    if (!places[r].peers.empty()) places[r].keep_on = places[r].peers.front();
  }
  return places;
}

std::string DescribeShardSources(const std::vector<v1::ShardSources>& by_rank) {
  v1::ShardSources sum;
  for (const v1::ShardSources& rank : by_rank) {
    sum.set_own_disk(sum.own_disk() + rank.own_disk());
    sum.set_peers(sum.peers() + rank.peers());
    sum.set_store(sum.store() + rank.store());
  }
  if (sum.own_disk() + sum.peers() + sum.store() == 0) return "";
  constexpr double kMegabyte = 1e6;
  return absl::StrFormat(
      "checkpoint read: %.3f MB from the ranks' own disks, %.3f MB from copies on other hosts, "
      "%.3f MB from the checkpoint store",
      sum.own_disk() / kMegabyte, sum.peers() / kMegabyte, sum.store() / kMegabyte);
}

}  // namespace espalier
