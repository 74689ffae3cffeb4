// Who makes a call, by what it shows.
#pragma once

#include "server/access/access_control.h"

namespace espalier {

class CertificateAuthority;
class TokenStore;

// Tokens are looked up among `tokens` (null: there are none), everything else by `keys`; null if
// that is null. `tokens` must outlive what is returned.
AccessControl::Identify IdentifyByKeyOrToken(AccessControl::Identify keys, TokenStore* tokens);

// A certificate of a worker, signed by this authority, makes its holder one, unless those of its
// token are refused. Both must outlive what is returned.
AccessControl::IdentifyCertificate IdentifyWorkers(const CertificateAuthority* authority,
                                                   TokenStore* tokens);

}  // namespace espalier
