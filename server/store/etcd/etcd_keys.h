// The names of what is kept in etcd, all under one prefix:
//
//   PREFIX/leader/LEASE         the candidates; the one created first leads (server/election)
//   PREFIX/format               the version of this layout
//   PREFIX/last                 the last write (LastWrite)
//   PREFIX/v/job/JOB            a job without its spec and plan (Job)
//   PREFIX/v/brief/JOB          its spec without the graph, for lists (Brief)
//   PREFIX/v/spec/JOB  v/plan/JOB
//   PREFIX/v/log/JOB/SEQUENCE   a batch of its log (LogBatch); no entry's number is above SEQUENCE
//   PREFIX/v/validations/JOB/SEQUENCE    its validations once more
//   PREFIX/v/reply/KEY          the recorded reply of an idempotency key (Reply)
//   PREFIX/v/artifact/NAME  v/served/NAME  v/blob/NAME  v/epoch  v/data-folder
//   PREFIX/c/...                chunks of large values: v/X is kept in c/X/VERSION/NUMBER
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

class EtcdKeys {
 public:
  // "/espalier"; without a slash at the end.
  explicit EtcdKeys(std::string prefix) : prefix_(std::move(prefix)) {}

  const std::string& prefix() const { return prefix_; }
  std::string Leaders() const { return prefix_ + "/leader/"; }
  std::string Format() const { return prefix_ + "/format"; }
  std::string Last() const { return prefix_ + "/last"; }

  // `name` below: what follows "v/", as "job/j-1".
  std::string Value(absl::string_view name) const;
  // Where the chunks of a value begin: the keys of older versions are before those of newer ones.
  std::string Chunks(absl::string_view name) const;
  std::string ChunksOf(absl::string_view name, uint64_t version) const;
  std::string Chunk(absl::string_view name, uint64_t version, uint32_t number) const;

  // "job/j-1": the name of what is kept of this kind for a job, or under another name.
  static std::string Name(absl::string_view kind, absl::string_view of);
  // With a slash at the end.
  static std::string LogOf(absl::string_view kind, absl::string_view job);
  static std::string Batch(absl::string_view log, uint64_t sequence);
  // The sequence number at the end of a batch's key; 0 if there is none.
  static uint64_t SequenceOf(absl::string_view key);

 private:
  const std::string prefix_;
};

// Makes any text a part of a key: letters, digits and "-_.@" stay, other bytes become %XX, so that
// different texts stay different and no slash is left.
std::string EscapedForKey(absl::string_view text);
// The text that was escaped.
std::string UnescapedKey(absl::string_view escaped);

// The end of the range of all keys that begin with `prefix`.
std::string EndOfPrefix(std::string prefix);

}  // namespace espalier
