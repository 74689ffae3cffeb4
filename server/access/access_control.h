// Decides who may call what, and use and change whose: in front of every RPC and HTTP route.
//
// Jobs, artifacts, boost-tunings and served models belong to the owner of the key that made them
// (base/net/api_keys.h). To others they do not exist; their names are taken all the same. What has
// no owner, because an admin made it or it is older than owners, may be used by everyone whose role
// has the call, and changed by admins only. Generations and stored responses are private: where
// they are looked up, only their owner and admins find them (Caller::MayChange).
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/net/caller.h"
#include "google/protobuf/message.h"
#include "server/access/access_rules.h"

namespace espalier {

// Tells the owner of a resource; nothing if there is none of this name.
using OwnerOf = std::function<std::optional<std::string>(const std::string& name)>;
// The error for a name that means nothing to this caller.
using NotFoundError = std::function<absl::Status(const std::string& name, const Caller& caller)>;

// Thread-safe once every AddResources has returned.
class AccessControl {
 public:
  // Returns who shows an Authorization header, or Unauthenticated.
  using Identify = std::function<absl::StatusOr<Caller>(const std::string& authorization)>;

  // Returns who shows a certificate (PEM), which the handshake has verified, or Unauthenticated.
  using IdentifyCertificate = std::function<absl::StatusOr<Caller>(const std::string& pem)>;

  // Without `identify` all callers are unrestricted.
  explicit AccessControl(Identify identify) : identify_(std::move(identify)) {}

  // Adds a source of owners; of several for a kind the first that knows the name counts, and the
  // first one's error.
  void AddResources(ResourceKind kind, OwnerOf owner, NotFoundError not_found);

  // Lets callers without an Authorization header be known by their certificates. Call before the
  // first call is admitted.
  void AcceptCertificates(IdentifyCertificate identify) {
    identify_certificate_ = std::move(identify);
  }

  bool restricts() const { return identify_ != nullptr; }

  // Returns the caller. Unauthenticated without a valid key; PermissionDenied, naming the roles
  // that may, if its roles do not allow the method, and if the method has no rule.
  absl::StatusOr<Caller> Admit(absl::string_view method, const std::string& authorization,
                               const std::string& certificate = "") const;
  // As Admit, for any role: of a method or route that does not exist.
  absl::StatusOr<Caller> Authenticate(const std::string& authorization,
                                      const std::string& certificate = "") const;

  // Checks the resources that the rule of `method` finds in a request. Returns NotFound for those
  // of others; PermissionDenied for a change of what has no owner; AlreadyExists for a name that is
  // taken.
  absl::Status CheckRequest(absl::string_view method, const Caller& caller,
                            const google::protobuf::Message& request) const;
  // Checks one resource; the same errors.
  absl::Status Check(const Caller& caller, ResourceKind kind, ResourceUse use,
                     const std::string& name) const;

 private:
  struct Source {
    OwnerOf owner;
    NotFoundError not_found;
  };

  const Identify identify_;
  IdentifyCertificate identify_certificate_;
  std::map<ResourceKind, std::vector<Source>> sources_;
};

// Removes the elements of a list that belong to others.
template <typename Repeated>
void KeepUsable(const Caller& caller, Repeated* items) {
  int kept = 0;
  for (int i = 0; i < items->size(); ++i) {
    if (caller.MayUse(items->Get(i).owner())) items->SwapElements(kept++, i);
  }
  items->DeleteSubrange(kept, items->size() - kept);
}

// Returns the texts at a path of fields ("spec.ssms.artifact"), of repeated fields all. REQUIRES:
// the path exists in the message's type.
std::vector<std::string> TextsAt(const google::protobuf::Message& message, absl::string_view path);

}  // namespace espalier
