// API keys, sent as "Authorization: Bearer KEY": by clients and workers to the coordinator, by the
// coordinator to its workers. A key has roles, and an owner to whom belongs what its holder makes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/net/caller.h"

namespace espalier {

// Returns the key for a call; called for each. Null: no key.
using ShownKey = std::function<std::string()>;

// Returns the key that an Authorization header carries; empty if it has no bearer scheme.
absl::string_view KeyIn(absl::string_view authorization);
// Whether an Authorization header carries `key`, compared in constant time.
bool IsBearer(const std::string& authorization, const std::string& key);

// Returns InvalidArgument for roles that do not go together (worker and monitor, which see what
// belongs to all, stand alone), and for a bad name of an owner; empty: none.
absl::Status CheckRolesAndOwner(Roles roles, absl::string_view owner);

// Thread-safe. Copies share their keys: a reload affects all.
class ApiKeys {
 public:
  // Reads one key per line, skipping blank lines and lines that start with #:
  //   KEY [role=ROLE[,ROLE...]] [owner=NAME] [max-priority=N]
  // Without roles, a key has that of an admin. Without an owner, what an admin makes is nobody's,
  // and any other key is an owner of its own ("key-" and a hash). The keys of workers are one owner
  // together, so that a worker keeps its lease when its key is exchanged. Returns InvalidArgument
  // naming the file and line if it is unreadable, open to other users (private_file.h) or empty, or
  // has a key shorter than 16 characters or twice, an unknown role, a bad owner or a bad number.
  // The roles worker and monitor see what belongs to all, and stand alone.
  static absl::StatusOr<ApiKeys> Read(const std::string& path);

  // Reads the file again. Returns true if the keys or their order changed. Errors are those of Read
  // and leave the keys unchanged.
  absl::StatusOr<bool> Reload();

  // Returns who holds the key that the header carries; Unauthenticated if it is none of these.
  absl::StatusOr<Caller> Identify(const std::string& authorization) const;

  // The key with which a worker joins: the first one that has the role. If none has: the first.
  ShownKey shown() const;
  bool MayJoin() const;  // whether one has that role

 private:
  struct Key {
    std::string key;
    Caller holder;
    bool operator==(const Key& other) const {
      return key == other.key && holder.roles == other.holder.roles &&
             holder.owner == other.holder.owner && holder.max_priority == other.holder.max_priority;
    }
  };
  struct State {
    std::string path;
    absl::Mutex mutex;
    std::vector<Key> keys ABSL_GUARDED_BY(mutex);
  };

  static absl::StatusOr<Key> ParseLine(absl::string_view line);
  static absl::StatusOr<std::vector<Key>> ReadFile(const std::string& path);
  explicit ApiKeys(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace espalier
