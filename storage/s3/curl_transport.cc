#include "storage/s3/curl_transport.h"

#include <unistd.h>

#include <atomic>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/version.h"
#include "storage/s3/curl_library.h"

namespace espalier::s3 {
namespace {

// A connection that carries less than this stands still.
constexpr long kStallBytesPerSecond = 256;
constexpr int64_t kMaxHeaderBytes = 64 << 10;

// Where distributions other than the one that libcurl was built for keep the certificates.
constexpr const char* kCertificates[] = {"/etc/ssl/certs/ca-certificates.crt",
                                         "/etc/pki/tls/certs/ca-bundle.crt",
                                         "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
                                         "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};

struct Received {
  HttpResponse response;
  int64_t limit = 0, header_bytes = 0;
  bool too_large = false;
};

size_t OnBody(const char* data, size_t one, size_t bytes, void* to) {
  Received& received = *static_cast<Received*>(to);
  std::string& body = received.response.body;
  if (static_cast<int64_t>(body.size() + bytes) > received.limit) {
    received.too_large = true;
    return 0;  // ends the transfer
  }
  body.append(data, bytes);
  return one * bytes;
}

size_t OnHeader(const char* data, size_t one, size_t bytes, void* to) {
  Received& received = *static_cast<Received*>(to);
  const absl::string_view line(data, bytes);
  if (absl::StartsWith(line, "HTTP/")) {  // another one follows "100 Continue"
    received.response.headers.clear();
    received.header_bytes = 0;
  }
  received.header_bytes += static_cast<int64_t>(bytes);
  if (received.header_bytes > kMaxHeaderBytes) {
    received.too_large = true;
    return 0;
  }
  if (const size_t colon = line.find(':'); colon != absl::string_view::npos) {
    const std::string name = absl::AsciiStrToLower(line.substr(0, colon));
    received.response.headers[name] =
        std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return one * bytes;
}

// libcurl calls it once a second, or more often.
int OnProgress(void* cancelled, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return *static_cast<const std::atomic<bool>*>(cancelled) ? 1 : 0;  // 1 ends the transfer
}

absl::Status Failure(const std::string& url, CURLcode code, const std::string& detail) {
  const std::string message = absl::StrCat(url.substr(0, url.find('?')), ": ", detail);
  switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
      return absl::FailedPreconditionError(absl::StrCat(
          message,
          "; if the server's certificate is of an authority of your own, name its file "
          "in AWS_CA_BUNDLE"));
    case CURLE_ABORTED_BY_CALLBACK:
      return absl::CancelledError(message);
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
      return absl::InvalidArgumentError(message);
    default:
      return absl::UnavailableError(message);
  }
}

class CurlTransport : public HttpTransport {
 public:
  explicit CurlTransport(std::string ca_file) : ca_file_(std::move(ca_file)) {
    for (const char* path : kCertificates) {
      if (ca_file_.empty() && access(path, R_OK) == 0) ca_file_ = path;
    }
  }

  ~CurlTransport() override {
    absl::MutexLock lock(&mutex_);
    for (CURL* handle : idle_) curl_->easy_cleanup(handle);
  }

  absl::StatusOr<HttpResponse> Send(const HttpRequest& request) override {
    for (const auto& [name, value] : request.headers) {
      if (absl::string_view(value).find_first_of(absl::string_view("\r\n\0", 3)) ==
          absl::string_view::npos)
        continue;
      return absl::InvalidArgumentError(
          absl::StrCat("the value of the header ", name, " has more than one line"));
    }
    absl::StatusOr<CURL*> taken = Take();
    if (!taken.ok()) return taken.status();
    CURL* const handle = *taken;
    const absl::Cleanup give_back = [this, handle] { GiveBack(handle); };
    const CurlLibrary& curl = *curl_;
    curl_slist* headers = nullptr;
    const absl::Cleanup free_headers = [&] { curl.slist_free_all(headers); };
    const auto add = [&](const std::string& line) {
      headers = curl.slist_append(headers, line.c_str());
    };
    for (const auto& [name, value] : request.headers) add(absl::StrCat(name, ": ", value));
    // What libcurl would add to a body by itself.
    add("Expect:");
    add("Content-Type:");

    Received received;
    received.limit = request.max_body_bytes;
    char detail[CURL_ERROR_SIZE] = "";
    const auto set = [&](CURLoption option, auto value) {
      curl.easy_setopt(handle, option, value);
    };
    set(CURLOPT_URL, request.url.c_str());
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_PATH_AS_IS, 1L);  // the path is signed as it is
    set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    set(CURLOPT_USERAGENT, absl::StrCat("espalier/", kEspalierVersion).c_str());
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_ERRORBUFFER, static_cast<char*>(detail));
    set(CURLOPT_CONNECTTIMEOUT_MS,
        static_cast<long>(absl::ToInt64Milliseconds(request.connect_timeout)));
    set(CURLOPT_TIMEOUT_MS, static_cast<long>(absl::ToInt64Milliseconds(request.timeout)));
    set(CURLOPT_LOW_SPEED_LIMIT, kStallBytesPerSecond);
    set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(absl::ToInt64Seconds(request.stall)));
    set(CURLOPT_BUFFERSIZE, 512L << 10);
    set(CURLOPT_UPLOAD_BUFFERSIZE, 512L << 10);
    set(CURLOPT_WRITEFUNCTION, &OnBody);
    set(CURLOPT_WRITEDATA, static_cast<void*>(&received));
    set(CURLOPT_HEADERFUNCTION, &OnHeader);
    set(CURLOPT_HEADERDATA, static_cast<void*>(&received));
    if (request.cancelled != nullptr) {
      set(CURLOPT_NOPROGRESS, 0L);
      set(CURLOPT_XFERINFOFUNCTION, &OnProgress);
      set(CURLOPT_XFERINFODATA,
          static_cast<void*>(const_cast<std::atomic<bool>*>(request.cancelled)));
    }
    if (!ca_file_.empty()) set(CURLOPT_CAINFO, ca_file_.c_str());
    if (!request.through_proxy) set(CURLOPT_PROXY, "");
    if (request.method == "HEAD") {
      set(CURLOPT_NOBODY, 1L);
    } else if (!request.body.empty() || request.method == "PUT" || request.method == "POST") {
      set(CURLOPT_POST, 1L);
      set(CURLOPT_POSTFIELDS, request.body.empty() ? "" : request.body.data());
      set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
      set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
    } else {
      set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
    }
    set(CURLOPT_HTTPHEADER, headers);

    const CURLcode code = curl.easy_perform(handle);
    if (received.too_large) {
      return absl::ResourceExhaustedError(absl::StrCat(request.url.substr(0, request.url.find('?')),
                                                       ": the answer is larger than ",
                                                       request.max_body_bytes, " bytes"));
    }
    if (code != CURLE_OK) {
      return Failure(request.url, code, detail[0] != '\0' ? detail : curl.easy_strerror(code));
    }
    long status = 0;
    curl.easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
    received.response.status = static_cast<int>(status);
    return std::move(received.response);
  }

 private:
  absl::StatusOr<CURL*> Take() {
    absl::MutexLock lock(&mutex_);
    if (curl_ == nullptr) {
      absl::StatusOr<const CurlLibrary*> loaded = CurlLibrary::Load();
      if (!loaded.ok()) return loaded.status();
      curl_ = *loaded;
    }
    if (!idle_.empty()) {
      CURL* const handle = idle_.back();
      idle_.pop_back();
      return handle;
    }
    CURL* const handle = curl_->easy_init();
    if (handle == nullptr) return absl::ResourceExhaustedError("no memory for a connection");
    return handle;
  }

  void GiveBack(CURL* handle) {
    curl_->easy_reset(handle);  // keeps the connection
    absl::MutexLock lock(&mutex_);
    idle_.push_back(handle);
  }

  std::string ca_file_;
  absl::Mutex mutex_;
  const CurlLibrary* curl_ = nullptr;  // written once, under the mutex, before any handle exists
  std::vector<CURL*> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<HttpTransport> NewCurlTransport(std::string ca_file) {
  return std::make_unique<CurlTransport>(std::move(ca_file));
}

}  // namespace espalier::s3
