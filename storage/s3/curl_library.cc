#include "storage/s3/curl_library.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace espalier::s3 {
namespace {

// Names of the library with OpenSSL and of the one with GnuTLS; their functions are the same.
constexpr const char* kNames[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
constexpr unsigned kOldest = 0x075500;  // 7.85.0: CURLOPT_PROTOCOLS_STR

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

absl::StatusOr<const CurlLibrary*> LoadCurl() {
  void* library = nullptr;
  std::string problem;
  for (const char* name : kNames) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    const char* error = dlerror();
    absl::StrAppend(&problem, problem.empty() ? "" : "; ", error == nullptr ? name : error);
  }
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("s3:// needs libcurl, which cannot be loaded (", problem,
                     "); install it: apt-get install libcurl4"));
  }
  static CurlLibrary curl;
  const bool complete = Find(library, "curl_global_init", &curl.global_init) &&
                        Find(library, "curl_easy_init", &curl.easy_init) &&
                        Find(library, "curl_easy_reset", &curl.easy_reset) &&
                        Find(library, "curl_easy_cleanup", &curl.easy_cleanup) &&
                        Find(library, "curl_easy_setopt", &curl.easy_setopt) &&
                        Find(library, "curl_easy_perform", &curl.easy_perform) &&
                        Find(library, "curl_easy_getinfo", &curl.easy_getinfo) &&
                        Find(library, "curl_easy_strerror", &curl.easy_strerror) &&
                        Find(library, "curl_slist_append", &curl.slist_append) &&
                        Find(library, "curl_slist_free_all", &curl.slist_free_all) &&
                        Find(library, "curl_version_info", &curl.version_info);
  if (!complete) return absl::FailedPreconditionError("libcurl lacks functions that s3:// needs");
  const curl_version_info_data* version = curl.version_info(CURLVERSION_NOW);
  if (version->version_num < kOldest) {
    return absl::FailedPreconditionError(
        absl::StrCat("s3:// needs libcurl 7.85 or newer; this is ", version->version));
  }
  if (curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    return absl::FailedPreconditionError("libcurl cannot be initialised");
  }
  return &curl;
}

}  // namespace

absl::StatusOr<const CurlLibrary*> CurlLibrary::Load() {
  static const absl::StatusOr<const CurlLibrary*>& loaded =
      *new absl::StatusOr<const CurlLibrary*>(LoadCurl());
  return loaded;
}

}  // namespace espalier::s3
