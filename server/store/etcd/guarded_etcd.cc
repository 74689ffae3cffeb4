#include "server/store/etcd/guarded_etcd.h"

#include <algorithm>
#include <set>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/backoff.h"

namespace espalier {
namespace {

using etcdserverpb::Compare;
using etcdserverpb::RangeRequest;
using etcdserverpb::RangeResponse;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

constexpr char kFormat[] = "1";
// How often a read begins again because etcd compacted the revision that it read.
constexpr int kReadTries = 5;

bool HasNoAnswer(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

bool IsCompacted(const absl::Status& status) {
  return absl::IsOutOfRange(status) && absl::StrContains(status.message(), "compacted");
}

// etcd's error says nothing to those who asked for jobs.
absl::Status WithoutCompaction(const absl::Status& status) {
  if (!IsCompacted(status)) return status;
  return absl::UnavailableError(
      "job store: etcd compacted its history while it was read; ask again");
}

// The low bits of a chunk's version, for the attempts of one write.
constexpr int kAttemptBits = 24;

Compare Exists(const std::string& key, bool there) {
  Compare compare;
  compare.set_key(key);
  compare.set_target(Compare::CREATE);
  compare.set_result(there ? Compare::GREATER : Compare::EQUAL);
  compare.set_create_revision(0);
  return compare;
}

RangeRequest One(const std::string& key) {
  RangeRequest range;
  range.set_key(key);
  return range;
}

}  // namespace

GuardedEtcd::GuardedEtcd(EtcdApi* etcd, EtcdKeys keys, LeaderGuard guard, Limits limits)
    : etcd_(etcd), keys_(std::move(keys)), guard_(std::move(guard)), limits_(limits) {}

absl::Status GuardedEtcd::Lost(const std::string& why) const {
  if (guard_.lost) guard_.lost(why);
  return absl::UnavailableError(
      absl::StrCat("this coordinator no longer leads: ", why, "; ask the one that does"));
}

template <typename Call>
auto GuardedEtcd::Persistently(const Call& call) const -> decltype(call()) {
  std::string last = "its lease was not renewed in time";
  for (Backoff backoff(absl::Milliseconds(50), absl::Milliseconds(500));;) {
    if (guard_.left() <= absl::ZeroDuration()) return Lost(last);
    auto result = call();
    if (result.ok() || !HasNoAnswer(result.status())) return result;
    last = absl::StrCat("its lease was not renewed in time (", result.status().message(), ")");
    absl::SleepFor(std::min(backoff.Take(), guard_.left()));
  }
}

Compare GuardedEtcd::Leads() const {
  Compare compare;
  compare.set_key(guard_.key);
  compare.set_target(Compare::CREATE);
  compare.set_result(Compare::EQUAL);
  compare.set_create_revision(guard_.epoch);
  return compare;
}

absl::Status GuardedEtcd::CheckLeads() const {
  // One attempt: the caller asks again.
  if (guard_.left() <= absl::ZeroDuration()) return Lost("its lease was not renewed in time");
  RangeRequest range = One(guard_.key);
  range.set_keys_only(true);
  const absl::StatusOr<RangeResponse> reply = etcd_->Range(range);
  if (!reply.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the job store does not answer: ", std::string(reply.status().message())));
  }
  if (reply->kvs_size() == 1 && reply->kvs(0).create_revision() == guard_.epoch) {
    return absl::OkStatus();
  }
  return Lost("its key in etcd is gone");
}

absl::Status GuardedEtcd::Open() {
  const absl::StatusOr<TxnResponse> reply = Persistently([&] {
    TxnRequest read;
    *read.add_success()->mutable_request_range() = One(keys_.Format());
    *read.add_success()->mutable_request_range() = One(keys_.Last());
    return etcd_->Txn(read);
  });
  if (!reply.ok()) return reply.status();
  const RangeResponse& format = reply->responses(0).response_range();
  const RangeResponse& last = reply->responses(1).response_range();
  if (format.kvs_size() > 0 && format.kvs(0).value() != kFormat) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the job store in etcd below ", keys_.prefix(), " has version ", format.kvs(0).value(),
        ", this espalierd reads ", kFormat, "; start the espalierd that wrote it"));
  }
  if (last.kvs_size() > 0) {
    etcd_records::LastWrite write;
    last_write_ = last.kvs(0).value();
    if (!write.ParseFromString(last_write_)) {
      return absl::DataLossError(absl::StrCat("job store: ", keys_.Last(), " does not parse"));
    }
    last_ = write.number();
  }
  if (format.kvs_size() == 0) {
    const absl::StatusOr<TxnResponse> made = Persistently([&] {
      TxnRequest make;
      *make.add_compare() = Leads();
      auto* put = make.add_success()->mutable_request_put();
      put->set_key(keys_.Format());
      put->set_value(kFormat);
      return etcd_->Txn(make);
    });
    if (!made.ok()) return made.status();
    if (!made->succeeded()) return Lost("its key in etcd is gone");
  }
  return RemoveLostChunks();
}

absl::Status GuardedEtcd::RemoveLostChunks() {
  // NAME/VERSION/ of all chunks.
  std::set<std::pair<std::string, uint64_t>> versions;
  const std::string begin = absl::StrCat(keys_.prefix(), "/c/");
  std::string from = begin;
  for (bool more = true; more;) {
    RangeRequest range;
    range.set_key(from);
    range.set_range_end(EndOfPrefix(begin));
    range.set_keys_only(true);
    range.set_limit(4096);
    const absl::StatusOr<RangeResponse> reply = Persistently([&] { return etcd_->Range(range); });
    if (!reply.ok()) return reply.status();
    more = reply->more() && reply->kvs_size() > 0;
    for (const mvccpb::KeyValue& pair : reply->kvs()) {
      absl::string_view key = pair.key();
      absl::ConsumePrefix(&key, begin);
      key = key.substr(0, key.rfind('/'));  // without the chunk's number
      const size_t slash = key.rfind('/');
      uint64_t version = 0;
      if (slash == key.npos || !absl::SimpleHexAtoi(key.substr(slash + 1), &version)) continue;
      versions.emplace(std::string(key.substr(0, slash)), version);
    }
    if (more) from = reply->kvs(reply->kvs_size() - 1).key() + '\0';
  }
  for (const auto& [name, version] : versions) {
    const absl::StatusOr<RangeResponse> reply =
        Persistently([&, key = keys_.Value(name)] { return etcd_->Range(One(key)); });
    if (!reply.ok()) return reply.status();
    etcd_records::Value value;
    if (reply->kvs_size() > 0 && value.ParseFromString(reply->kvs(0).value()) &&
        value.chunks().version() == version) {
      continue;
    }
    const absl::StatusOr<TxnResponse> removed =
        Persistently([&, prefix = keys_.ChunksOf(name, version)] {
          TxnRequest remove;
          *remove.add_compare() = Leads();
          auto* range = remove.add_success()->mutable_request_delete_range();
          range->set_key(prefix);
          range->set_range_end(EndOfPrefix(prefix));
          return etcd_->Txn(remove);
        });
    if (!removed.ok()) return removed.status();
    if (!removed->succeeded()) return Lost("its key in etcd is gone");
  }
  return absl::OkStatus();
}

absl::Status GuardedEtcd::PutChunks(const std::string& name, const std::string& bytes,
                                    uint64_t version) {
  uint32_t number = 0;
  for (size_t at = 0; at < bytes.size(); at += limits_.chunk_bytes, ++number) {
    TxnRequest request;
    *request.add_compare() = Leads();
    auto* put = request.add_success()->mutable_request_put();
    put->set_key(keys_.Chunk(name, version, number));
    put->set_value(bytes.substr(at, limits_.chunk_bytes));
    const absl::StatusOr<TxnResponse> reply = Persistently([&] { return etcd_->Txn(request); });
    if (!reply.ok()) return reply.status();
    if (!reply->succeeded()) return Lost("its key in etcd is gone");
  }
  return absl::OkStatus();
}

absl::StatusOr<TxnRequest> GuardedEtcd::Transaction(const EtcdChange& change,
                                                    const std::string& last_write) {
  const uint64_t version =
      (next_number() << kAttemptBits) + failed_ % (uint64_t{1} << kAttemptBits);
  TxnRequest request;
  // The failure branch says which condition did not hold, in this order.
  const auto condition = [&](Compare compare, bool with_value) {
    RangeRequest range = One(compare.key());
    range.set_keys_only(!with_value);
    *request.add_failure()->mutable_request_range() = std::move(range);
    *request.add_compare() = std::move(compare);
  };
  condition(Leads(), false);
  Compare last = Exists(keys_.Last(), false);
  if (!last_write_.empty()) {
    last.set_target(Compare::VALUE);
    last.set_value(last_write_);
  }
  condition(std::move(last), true);
  for (const auto& requirement : change.requirements_) {
    condition(Exists(keys_.Value(requirement.name), requirement.there), false);
  }
  const auto remove = [&](const std::string& first, const std::string& end) {
    auto* range = request.add_success()->mutable_request_delete_range();
    range->set_key(first);
    range->set_range_end(end);
  };
  for (const std::string& name : change.deletes_) {
    remove(keys_.Value(name), keys_.Value(name) + '\0');
    remove(keys_.Chunks(name), EndOfPrefix(keys_.Chunks(name)));
  }
  for (const auto& [first, end] : change.ranges_) {
    remove(keys_.Value(first), keys_.Value(end));
    remove(absl::StrCat(keys_.prefix(), "/c/", first), absl::StrCat(keys_.prefix(), "/c/", end));
  }
  const auto put = [&](const std::string& key, std::string value) {
    auto* one = request.add_success()->mutable_request_put();
    one->set_key(key);
    one->set_value(std::move(value));
  };
  for (const auto& [name, bytes] : change.puts_) {
    etcd_records::Value value;
    if (bytes.size() <= limits_.whole_bytes) {
      value.set_whole(bytes);
    } else {
      if (absl::Status s = PutChunks(name, bytes, version); !s.ok()) return s;
      value.mutable_chunks()->set_version(version);
      value.mutable_chunks()->set_bytes(bytes.size());
      value.mutable_chunks()->set_count(
          static_cast<uint32_t>((bytes.size() + limits_.chunk_bytes - 1) / limits_.chunk_bytes));
    }
    // Chunks of the value that this one replaces.
    remove(keys_.Chunks(name), keys_.ChunksOf(name, version));
    put(keys_.Value(name), value.SerializeAsString());
  }
  put(keys_.Last(), last_write);
  return request;
}

absl::Status GuardedEtcd::Refused(const EtcdChange& change, const std::string& last_write,
                                  const TxnResponse& reply) const {
  const auto found = [&](int i) -> const RangeResponse& {
    return reply.responses(i).response_range();
  };
  if (reply.responses_size() != 2 + static_cast<int>(change.requirements_.size())) {
    return absl::InternalError("etcd answered a transaction with a wrong number of responses");
  }
  // Applied before the answer was lost, even if another coordinator leads now.
  if (found(1).kvs_size() == 1 && found(1).kvs(0).value() == last_write) return absl::OkStatus();
  if (found(0).kvs_size() == 0 || found(0).kvs(0).create_revision() != guard_.epoch) {
    return Lost("its key in etcd is gone");
  }
  const bool same = last_write_.empty()
                        ? found(1).kvs_size() == 0
                        : found(1).kvs_size() == 1 && found(1).kvs(0).value() == last_write_;
  if (!same) return Lost(absl::StrCat("something else has written below ", keys_.prefix()));
  for (size_t i = 0; i < change.requirements_.size(); ++i) {
    const bool there = found(static_cast<int>(i) + 2).kvs_size() > 0;
    if (there != change.requirements_[i].there) return change.requirements_[i].otherwise;
  }
  return absl::InternalError("etcd refused a transaction whose conditions hold");
}

absl::Status GuardedEtcd::Commit(const EtcdChange& change) {
  etcd_records::LastWrite write;
  write.set_epoch(guard_.epoch);
  write.set_number(next_number());
  const std::string last_write = write.SerializeAsString();
  absl::Cleanup failed = [this] { ++failed_; };
  const absl::StatusOr<TxnRequest> request = Transaction(change, last_write);
  if (!request.ok()) return request.status();
  // Once an attempt has had no answer, only success or a refused repetition says what became of
  // it: any other error may be of the repetition alone.
  bool unknown = false;
  const absl::StatusOr<TxnResponse> reply = Persistently([&] {
    absl::StatusOr<TxnResponse> tried = etcd_->Txn(*request);
    if (!tried.ok() && unknown && !HasNoAnswer(tried.status())) {
      tried = absl::UnavailableError(tried.status().message());
    }
    if (!tried.ok() && HasNoAnswer(tried.status())) unknown = true;
    return tried;
  });
  if (!reply.ok()) return reply.status();
  if (!reply->succeeded()) {
    if (absl::Status status = Refused(change, last_write, *reply); !status.ok()) return status;
  }
  std::move(failed).Cancel();
  failed_ = 0;
  last_ = write.number();
  last_write_ = last_write;
  return absl::OkStatus();
}

absl::StatusOr<std::string> GuardedEtcd::Whole(const std::string& name, const std::string& stored,
                                               int64_t revision) const {
  const auto damaged = [&](absl::string_view what) {
    return absl::DataLossError(
        absl::StrCat("job store: the value ", name, " in etcd ", what,
                     "; restore etcd from a snapshot, or begin with another prefix"));
  };
  etcd_records::Value value;
  if (!value.ParseFromString(stored)) return damaged("does not parse");
  if (!value.has_chunks()) return std::move(*value.mutable_whole());
  std::string bytes;
  bytes.reserve(value.chunks().bytes());
  for (uint32_t number = 0; number < value.chunks().count(); ++number) {
    RangeRequest range = One(keys_.Chunk(name, value.chunks().version(), number));
    range.set_revision(revision);
    const absl::StatusOr<RangeResponse> reply = Persistently([&] { return etcd_->Range(range); });
    if (!reply.ok()) return reply.status();
    if (reply->kvs_size() != 1) return damaged("lacks a chunk");
    bytes += reply->kvs(0).value();
  }
  if (bytes.size() != value.chunks().bytes()) return damaged("has chunks of a wrong size");
  return bytes;
}

absl::StatusOr<std::vector<std::optional<std::string>>> GuardedEtcd::Read(
    const std::vector<std::string>& names, int64_t revision) const {
  TxnRequest read;
  for (const std::string& name : names) {
    RangeRequest range = One(keys_.Value(name));
    range.set_revision(revision);
    *read.add_success()->mutable_request_range() = std::move(range);
  }
  absl::Status status;
  for (int tries = 0; tries < kReadTries; ++tries) {
    const absl::StatusOr<TxnResponse> reply = Persistently([&] { return etcd_->Txn(read); });
    if (!reply.ok()) return WithoutCompaction(reply.status());
    if (reply->responses_size() != static_cast<int>(names.size())) {
      return absl::InternalError("etcd answered a transaction with a wrong number of responses");
    }
    std::vector<std::optional<std::string>> values;
    status = absl::OkStatus();
    for (size_t i = 0; i < names.size() && status.ok(); ++i) {
      const RangeResponse& found = reply->responses(static_cast<int>(i)).response_range();
      values.emplace_back();
      if (found.kvs_size() == 0) continue;
      absl::StatusOr<std::string> bytes = Whole(
          names[i], found.kvs(0).value(), revision != 0 ? revision : reply->header().revision());
      status = bytes.status();
      if (bytes.ok()) values.back() = *std::move(bytes);
    }
    if (status.ok()) return values;
    if (!IsCompacted(status) || revision != 0) break;
  }
  return WithoutCompaction(status);
}

absl::Status GuardedEtcd::ReadRange(const std::string& first, const std::string& end,
                                    int64_t* revision,
                                    const std::function<absl::StatusOr<bool>(Named)>& visit) const {
  const std::string before = keys_.Value("");
  RangeRequest range;
  range.set_key(keys_.Value(first));
  range.set_range_end(keys_.Value(end));
  range.set_limit(limits_.page);
  for (bool more = true; more;) {
    range.set_revision(*revision);
    const absl::StatusOr<RangeResponse> reply = Persistently([&] { return etcd_->Range(range); });
    if (!reply.ok()) return WithoutCompaction(reply.status());
    if (*revision == 0) *revision = reply->header().revision();
    more = reply->more() && reply->kvs_size() > 0;
    for (const mvccpb::KeyValue& pair : reply->kvs()) {
      Named named{pair.key().substr(before.size()), ""};
      absl::StatusOr<std::string> bytes = Whole(named.name, pair.value(), *revision);
      if (!bytes.ok()) return WithoutCompaction(bytes.status());
      named.bytes = *std::move(bytes);
      const absl::StatusOr<bool> go_on = visit(std::move(named));
      if (!go_on.ok()) return go_on.status();
      if (!*go_on) return absl::OkStatus();
    }
    if (more) range.set_key(reply->kvs(reply->kvs_size() - 1).key() + '\0');
  }
  return absl::OkStatus();
}

}  // namespace espalier
