// Reads files of a store by name: of a folder, of the coordinator over gRPC, or of a bucket.
//
// Objects have names relative to the store, of parts separated by "/". No part is empty, "." or
// "..". A folder is what names begin with; there are no empty ones.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file_system.h"

namespace espalier {

// Thread-safe. Errors name the object and the store: InvalidArgument for a bad name; NotFound;
// PermissionDenied; Unavailable if the store does not answer and a later call may succeed.
class ObjectReader {
 public:
  struct Object {
    std::string name;
    int64_t bytes = 0;
  };

  virtual ~ObjectReader() = default;

  // Opens an object for reads of ranges.
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& name) = 0;
  // Returns the objects beneath `folder`, also those in its folders, by name; all if it is empty.
  // Incomplete uploads are not among them.
  virtual absl::StatusOr<std::vector<Object>> List(const std::string& folder) = 0;
};

// Returns InvalidArgument unless the name has the form above.
absl::Status CheckObjectName(absl::string_view name);

// Returns ResourceExhausted if the object is larger than `limit`.
absl::StatusOr<std::string> ReadObject(ObjectReader& store, const std::string& name, int64_t limit);

}  // namespace espalier
