#include "server/access/identify.h"

#include <string>
#include <utility>

#include "base/net/access_token.h"
#include "base/net/api_keys.h"
#include "server/access/certificate_authority.h"
#include "server/access/token_store.h"

namespace espalier {

AccessControl::Identify IdentifyByKeyOrToken(AccessControl::Identify keys, TokenStore* tokens) {
  if (keys == nullptr || tokens == nullptr) return keys;
  return [keys = std::move(keys), tokens](const std::string& authorization) {
    const std::string shown(KeyIn(authorization));
    return IsAccessToken(shown) ? tokens->Identify(shown) : keys(authorization);
  };
}

AccessControl::IdentifyCertificate IdentifyWorkers(const CertificateAuthority* authority,
                                                   TokenStore* tokens) {
  return [authority, tokens](const std::string& certificate) -> absl::StatusOr<Caller> {
    const absl::StatusOr<WorkerIdentity> identity = authority->Identify(certificate);
    if (!identity.ok()) return identity.status();
    if (absl::Status s = tokens->CheckCertificate(identity->token_id); !s.ok()) return s;
    return Caller{Role::kWorker, identity->name};
  };
}

}  // namespace espalier
