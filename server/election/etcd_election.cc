#include "server/election/etcd_election.h"

#include "absl/strings/str_format.h"
#include "server/store/etcd/etcd_keys.h"

namespace espalier {
namespace {

class EtcdElectionStore : public ElectionStore {
 public:
  EtcdElectionStore(EtcdApi* etcd, const std::string& prefix) : etcd_(*etcd), keys_(prefix) {}

  absl::StatusOr<Lease> Grant(absl::Duration ttl) override {
    const absl::StatusOr<EtcdApi::Lease> lease = etcd_.GrantLease(ttl);
    if (!lease.ok()) return lease.status();
    return Lease{lease->id, lease->ttl};
  }

  absl::StatusOr<absl::Duration> Renew(int64_t lease) override { return etcd_.KeepAlive(lease); }

  absl::Status Revoke(int64_t lease) override { return etcd_.RevokeLease(lease); }

  absl::Status Enter(int64_t lease, const std::string& candidate) override {
    const std::string key = absl::StrFormat("%s%016x", keys_.Leaders(), lease);
    // A repetition, after a lost answer, changes nothing.
    etcdserverpb::TxnRequest request;
    etcdserverpb::Compare* absent = request.add_compare();
    absent->set_key(key);
    absent->set_target(etcdserverpb::Compare::CREATE);
    absent->set_result(etcdserverpb::Compare::EQUAL);
    absent->set_create_revision(0);
    etcdserverpb::PutRequest* put = request.add_success()->mutable_request_put();
    put->set_key(key);
    put->set_value(candidate);
    put->set_lease(lease);
    return etcd_.Txn(request).status();
  }

  absl::StatusOr<std::optional<Leader>> Oldest() override {
    etcdserverpb::RangeRequest request;
    request.set_key(keys_.Leaders());
    request.set_range_end(EndOfPrefix(keys_.Leaders()));
    request.set_sort_target(etcdserverpb::RangeRequest::CREATE);
    request.set_sort_order(etcdserverpb::RangeRequest::ASCEND);
    request.set_limit(1);
    const absl::StatusOr<etcdserverpb::RangeResponse> reply = etcd_.Range(request);
    if (!reply.ok()) return reply.status();
    if (reply->kvs_size() == 0) return std::optional<Leader>();
    const mvccpb::KeyValue& oldest = reply->kvs(0);
    return std::optional<Leader>(
        Leader{oldest.lease(), oldest.create_revision(), oldest.key(), oldest.value()});
  }

 private:
  EtcdApi& etcd_;
  const EtcdKeys keys_;
};

}  // namespace

std::unique_ptr<ElectionStore> NewEtcdElectionStore(EtcdApi* etcd, const std::string& prefix) {
  return std::make_unique<EtcdElectionStore>(etcd, prefix);
}

}  // namespace espalier
