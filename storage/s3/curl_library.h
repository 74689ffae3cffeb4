// libcurl, loaded when it is first needed: programs start without it and without its thirty
// libraries, and it keeps its own OpenSSL apart from one that is linked statically.
#pragma once

#include <curl/curl.h>

#include "absl/status/statusor.h"

namespace espalier::s3 {

struct CurlLibrary {
  decltype(&curl_global_init) global_init;
  decltype(&curl_easy_init) easy_init;
  decltype(&curl_easy_reset) easy_reset;
  decltype(&curl_easy_cleanup) easy_cleanup;
  decltype(&curl_easy_setopt) easy_setopt;
  decltype(&curl_easy_perform) easy_perform;
  decltype(&curl_easy_getinfo) easy_getinfo;
  decltype(&curl_easy_strerror) easy_strerror;
  decltype(&curl_slist_append) slist_append;
  decltype(&curl_slist_free_all) slist_free_all;
  decltype(&curl_version_info) version_info;

  // Loads it once per process. FailedPrecondition, with the remedy, if it is missing or too old.
  static absl::StatusOr<const CurlLibrary*> Load();
};

}  // namespace espalier::s3
