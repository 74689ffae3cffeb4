// Who makes a call: what the caller may do, and to whom belongs what the caller makes.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// Roles of an API key (docs/operations/security.md). A key may have several.
enum class Role : uint8_t {
  kAdmin = 1,     // everything, also what belongs to others
  kTrain = 2,     // jobs, plans, datasets and models; serves them
  kInfer = 4,     // requests to served models
  kWorker = 8,    // joins as a worker, and so is given parameters and datasets of jobs
  kMonitor = 16,  // metrics and the state of the cluster
};

// A set of roles.
class Roles {
 public:
  constexpr Roles() = default;
  constexpr Roles(Role role) : bits_(static_cast<uint8_t>(role)) {}
  constexpr Roles operator|(Roles other) const { return Roles(bits_ | other.bits_); }
  constexpr bool Intersects(Roles other) const { return (bits_ & other.bits_) != 0; }
  constexpr bool operator==(const Roles&) const = default;
  // "admin, train"; empty for none.
  std::string ToString() const;

 private:
  constexpr explicit Roles(int bits) : bits_(static_cast<uint8_t>(bits)) {}
  uint8_t bits_ = 0;
};
constexpr Roles operator|(Role a, Role b) { return Roles(a) | b; }

// Reads "admin,train". Returns InvalidArgument, listing the roles, for any other name or none.
absl::StatusOr<Roles> ParseRoles(absl::string_view names);

struct Caller {
  Roles roles;
  // Owner of what the caller makes. Empty: nobody's, which everyone may use and an admin change.
  std::string owner;
  // Up to which its jobs' priority counts against other owners' jobs; an admin's counts in full
  // (server/access/job_priority.h).
  int32_t max_priority = 0;

  // A caller where no keys are used, and the daemon itself.
  static Caller Unrestricted() { return {Role::kAdmin, "", 0}; }

  bool Has(Roles any) const { return roles.Intersects(any); }
  // Whether the caller may see and use what belongs to `of`. Workers and monitors see all, of the
  // few things that their roles let them call.
  bool MayUse(absl::string_view of) const {
    return of.empty() || of == owner || Has(Role::kAdmin | Role::kWorker | Role::kMonitor);
  }
  // Whether the caller may cancel, replace and delete it.
  bool MayChange(absl::string_view of) const {
    return Has(Role::kAdmin) || (!of.empty() && of == owner);
  }
};

}  // namespace espalier
