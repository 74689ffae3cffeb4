// A job's log in etcd: batches of entries, each under the number of its last entry.
//
// A write adds one batch. As soon as enough of the same level are at the end, they are merged into
// one of the next level, so that a log of a million steps has some thousand keys.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/etcd/guarded_etcd.h"
#include "server/store/etcd/records.pb.h"

namespace espalier {

// Where the steps of a log's batches are, so that dropping and replacing steps reads only what it
// changes. Not thread-safe.
class EtcdLog {
 public:
  // `folder`: EtcdKeys::LogOf.
  EtcdLog(const GuardedEtcd* etcd, std::string folder) : etcd_(etcd), folder_(std::move(folder)) {}

  // Reads what is there. Call first.
  absl::Status Load();

  // Adds to `change`: drops reports and validations of `drop_from` and later steps, then appends
  // entries, whose steps replace earlier entries of the same kind and step. Entries have growing
  // sequence numbers. The log is as before until Commit is called, which must follow a successful
  // commit of the change; otherwise Forget.
  absl::Status Change(std::optional<int64_t> drop_from, std::vector<etcd_records::LogEntry> entries,
                      EtcdChange* change);
  void Commit();
  void Forget() { next_.reset(); }

  // Calls `visit` with the entries after a sequence number, in their order, until it returns false.
  static absl::Status Read(const GuardedEtcd& etcd, const std::string& folder, uint64_t after,
                           int64_t* revision,
                           const std::function<bool(const etcd_records::LogEntry&)>& visit);

 private:
  // Least and greatest step of one kind of entries.
  struct Steps {
    int64_t least = INT64_MAX, greatest = INT64_MIN;
    void Add(int64_t step);
    bool Has(int64_t step) const { return least <= step && step <= greatest; }
  };
  struct Batch {
    int32_t level = 0;
    size_t bytes = 0;
    Steps reports, validations;
  };
  using Batches = std::map<uint64_t, Batch>;  // by the last sequence number

  static Batch Describe(const etcd_records::LogBatch& batch, size_t bytes);
  // The first batch that the change may take something from.
  Batches::const_iterator FirstChanged(std::optional<int64_t> drop_from,
                                       const std::vector<etcd_records::LogEntry>& entries) const;
  // The first of the batches at the end that are to be merged with a new one; end: none.
  Batches::const_iterator FirstMerged(size_t bytes, int32_t* level) const;
  absl::StatusOr<std::vector<etcd_records::LogEntry>> EntriesFrom(uint64_t sequence) const;

  const GuardedEtcd* const etcd_;
  const std::string folder_;
  Batches batches_;
  std::optional<Batches> next_;  // after the change
};

}  // namespace espalier
