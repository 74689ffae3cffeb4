// API keys, sent as "Authorization: Bearer KEY": by clients and workers to the coordinator, by the
// coordinator to its workers. Keys grant access; they do not isolate tenants, except that
// generations and stored responses belong to the key that created them.
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

namespace espalier {

// Returns the key for a call; called for each. Null: no key.
using ShownKey = std::function<std::string()>;

// Returns the key that an Authorization header carries; empty if it has no bearer scheme.
absl::string_view KeyIn(absl::string_view authorization);
// Whether an Authorization header carries `key`, compared in constant time.
bool IsBearer(const std::string& authorization, const std::string& key);

// Thread-safe. Copies share their keys: a reload affects all.
class ApiKeys {
 public:
  // Reads one key per line, skipping blank lines and lines that start with #. Returns
  // InvalidArgument naming the file if it is unreadable, open to other users (private_file.h) or
  // empty, or has a key shorter than 16 characters.
  static absl::StatusOr<ApiKeys> Read(const std::string& path);

  // Reads the file again. Returns true if the keys or their order changed. Errors are those of Read
  // and leave the keys unchanged.
  absl::StatusOr<bool> Reload();

  // Returns Unauthenticated unless the header carries one of the keys.
  absl::Status Check(const std::string& authorization) const;

  // The first key, which the holder of the file sends to others.
  ShownKey shown() const;

 private:
  struct State {
    std::string path;
    absl::Mutex mutex;
    std::vector<std::string> keys ABSL_GUARDED_BY(mutex);
  };

  explicit ApiKeys(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace espalier
