// Values in etcd that only the leading coordinator writes.
//
// Every write is one transaction with two conditions: the leader's key still exists as this
// coordinator created it, and the last write is the one that this coordinator knows. The first
// keeps a coordinator that was stopped and goes on from writing after another took over. By the
// second, a write whose answer was lost can be repeated: at most one of the repetitions is applied,
// and all writes, of all leaders, are one sequence.
//
// Values that do not fit into a transaction are written in chunks before it, under keys with the
// number of that write and of its attempt, and become visible by it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/store/etcd/etcd_api.h"
#include "server/store/etcd/etcd_keys.h"
#include "server/store/etcd/records.pb.h"

namespace espalier {

// The right to write, which an election gave.
struct LeaderGuard {
  std::string key;    // of this coordinator's candidacy
  int64_t epoch = 0;  // the revision at which it was created
  // How long this coordinator surely leads, unless it renews its lease; zero: it may not any more.
  std::function<absl::Duration()> left;
  // Called when etcd shows that another leads, or may.
  std::function<void(const std::string& why)> lost;
};

// Changes that become visible together. Names are those of EtcdKeys, without "v/".
class EtcdChange {
 public:
  void Put(std::string name, std::string bytes) {
    puts_.emplace_back(std::move(name), std::move(bytes));
  }
  void Delete(std::string name) { deletes_.push_back(std::move(name)); }
  // Deletes the values from `first` on that are before `end`, none of which may be put here. Only
  // for a folder whose names are equally long.
  void DeleteRange(std::string first, std::string end) {
    ranges_.emplace_back(std::move(first), std::move(end));
  }
  // Makes the whole change fail with `otherwise` unless the value is there, or is not.
  void Require(bool there, std::string name, absl::Status otherwise) {
    requirements_.push_back({there, std::move(name), std::move(otherwise)});
  }

 private:
  friend class GuardedEtcd;
  struct Requirement {
    bool there;
    std::string name;
    absl::Status otherwise;
  };
  std::vector<std::pair<std::string, std::string>> puts_, ranges_;
  std::vector<std::string> deletes_;
  std::vector<Requirement> requirements_;
};

// Thread-safe, except that one Commit runs at a time.
class GuardedEtcd {
 public:
  struct Limits {
    // etcd accepts 1.5 MiB and 128 operations in a transaction by default.
    size_t whole_bytes = 32 << 10;  // larger values are kept in chunks
    size_t chunk_bytes = 512 << 10;
    int page = 128;  // values that are read at once
  };

  GuardedEtcd(EtcdApi* etcd, EtcdKeys keys, LeaderGuard guard, Limits limits);

  // Takes over what the last leader left: checks the layout's version, or makes a new store, and
  // removes chunks that no value refers to.
  absl::Status Open();

  // The number of the next Commit; larger than all before.
  uint64_t next_number() const { return last_ + 1; }
  // Repeats the write until it is known what became of it, or this coordinator no longer leads.
  // Unavailable: it does not lead, and the write may or may not be there for the next leader.
  absl::Status Commit(const EtcdChange& change);

  // Reads values, all as of one moment; nullopt: there is none. `revision`: of that moment; 0: now.
  absl::StatusOr<std::vector<std::optional<std::string>>> Read(
      const std::vector<std::string>& names, int64_t revision = 0) const;
  struct Named {
    std::string name, bytes;
  };
  // Returns values from `first` on that are before `end`, in the order of their names, until
  // `visit` returns false or an error. `revision`: of the moment to read; 0: now, and it is set.
  absl::Status ReadRange(const std::string& first, const std::string& end, int64_t* revision,
                         const std::function<absl::StatusOr<bool>(Named)>& visit) const;

  // Asks etcd whether this coordinator leads.
  absl::Status CheckLeads() const;

  const EtcdKeys& keys() const { return keys_; }

 private:
  absl::Status Lost(const std::string& why) const;
  // Repeats a call while etcd does not answer and this coordinator leads.
  template <typename Call>
  auto Persistently(const Call& call) const -> decltype(call());
  etcdserverpb::Compare Leads() const;
  absl::Status PutChunks(const std::string& name, const std::string& bytes, uint64_t version);
  absl::StatusOr<etcdserverpb::TxnRequest> Transaction(const EtcdChange& change,
                                                       const std::string& last_write);
  // What a refused transaction says: OK if an earlier repetition of it was applied.
  absl::Status Refused(const EtcdChange& change, const std::string& last_write,
                       const etcdserverpb::TxnResponse& reply) const;
  absl::StatusOr<std::string> Whole(const std::string& name, const std::string& stored,
                                    int64_t revision) const;
  absl::Status RemoveLostChunks();

  EtcdApi* const etcd_;
  const EtcdKeys keys_;
  const LeaderGuard guard_;
  const Limits limits_;
  uint64_t last_ = 0;       // number of the last write
  std::string last_write_;  // LastWrite, serialized; empty: there is none yet
  // Commits that failed since then. A chunk of one of these may still be put, late: the next one
  // must not use its key.
  uint64_t failed_ = 0;
};

}  // namespace espalier
