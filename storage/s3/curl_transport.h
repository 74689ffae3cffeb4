// HTTP by libcurl.
#pragma once

#include <memory>
#include <string>

#include "storage/s3/http.h"

namespace espalier::s3 {

// Connections are kept and used again. `ca_file` holds the certificates that are trusted; empty:
// the system's. libcurl is loaded by the first Send. REQUIRES: SIGPIPE is ignored in this process,
// as OpenSSL may raise it.
std::unique_ptr<HttpTransport> NewCurlTransport(std::string ca_file);

}  // namespace espalier::s3
