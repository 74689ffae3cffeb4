// The keys that callers show as "Authorization: Bearer KEY": clients and workers to the
// coordinator, the coordinator to its workers. Keys admit, they do not separate tenants: but for
// generations and stored responses, which belong to the key that made them, all is everybody's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace espalier {

// The key that a call shows, asked for with each of them; null: none.
using ShownKey = std::function<std::string()>;

// Thread-safe. Copies are the same keys: what one reloads, all have.
class ApiKeys {
 public:
  // One key per line; blank lines and lines that begin with # are skipped. InvalidArgument naming
  // the file if it cannot be read, is empty, or holds a key shorter than 16 characters.
  static absl::StatusOr<ApiKeys> Read(const std::string& path);

  // Reads the file again; whether it holds other keys than before, or the same ones in another
  // order. Errors as of Read: the keys are then those of before.
  absl::StatusOr<bool> Reload();

  // Unauthenticated unless the header shows one of the keys.
  absl::Status Check(const std::string& authorization) const;

  // The first one is what the holder of the file shows to others.
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
