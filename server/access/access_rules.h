// Which roles may call which RPC and HTTP route, and which of a request's fields name what may
// belong to others. A method without a rule here is refused to everyone.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/net/caller.h"

namespace espalier {

enum class ResourceKind {
  kJob,
  kArtifact,
  kDistillation,
  kServedModel,
  kSession,
  kReplay,
  kWorker
};

// "job", "boost-tuning".
const char* NameOfKind(ResourceKind kind);

enum class ResourceUse {
  kRead,    // of its owner's, or of nobody's
  kChange,  // cancel, resume, delete, end: of its owner's
  kCreate,  // under this name: unless it is another owner's
  kActAs,   // a worker, by its lease: by who joined; to other workers it does not exist
};

// A field of a request that names a resource.
struct ResourceField {
  absl::string_view path;  // "spec.dataset.uri"; of a repeated field, all elements
  ResourceKind kind;
  ResourceUse use;
  // Text before the name; what lacks it names no resource.
  absl::string_view prefix = "";
};

struct AccessRule {
  // "Service/Method", or "GET /path" with the placeholders of the gateway.
  absl::string_view method;
  Roles roles;  // any of these; an admin may call everything
  std::vector<ResourceField> resources;
  // The request carries what authorises it, a token, and is let through without a key.
  bool has_token = false;
};

// Sorted by method.
const std::vector<AccessRule>& AccessRules();
// Returns null if there is none.
const AccessRule* FindAccessRule(absl::string_view method);

}  // namespace espalier
