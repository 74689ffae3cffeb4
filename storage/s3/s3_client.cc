#include "storage/s3/s3_client.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "storage/s3/curl_transport.h"
#include "storage/s3/s3_error.h"
#include "storage/s3/sigv4.h"

namespace espalier::s3 {
namespace {

constexpr char kTagHeader[] = "x-amz-meta-espalier-upload";
constexpr int64_t kMaxListBytes = 16 << 20;
// A page has at most a thousand entries.
constexpr int kMaxPages = 100'000;
// Slower connections than this cannot carry a part in time.
constexpr int64_t kSlowestBytesPerSecond = 64 << 10;
// Of a call that nobody waits for.
constexpr absl::Duration kOnce = absl::Seconds(3);

absl::Status Named(const std::string& name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(name, ": ", std::string(status.message())));
}

// Of the services that give credentials: each request for S3 asks them anew.
RetryPolicy FewerAttempts(RetryPolicy policy) {
  policy.attempts = std::min(policy.attempts, 3);
  return policy;
}

std::string RightOf(const std::string& method, const std::string& key, const HttpQuery& query) {
  const auto has = [&query](const char* name) {
    return std::any_of(query.begin(), query.end(),
                       [name](const auto& parameter) { return parameter.first == name; });
  };
  if (key.empty()) return has("uploads") ? "s3:ListBucketMultipartUploads" : "s3:ListBucket";
  if (method == "DELETE") return has("uploadId") ? "s3:AbortMultipartUpload" : "s3:DeleteObject";
  return method == "GET" || method == "HEAD" ? kReadRight : "s3:PutObject";
}

absl::Status Truncated(const std::string& name, const std::string& problem) {
  return absl::UnavailableError(absl::StrCat(name, ": ", problem));
}

}  // namespace

S3World SystemS3World() {
  S3World world;
  world.environment = ProcessEnvironment();
  world.files = NewPosixFileSystem();
  world.http = NewCurlTransport(world.environment("AWS_CA_BUNDLE"));
  world.pauses = NewSystemPauses();
  return world;
}

S3Client::Shared::Shared(S3World given, std::string name)
    : world(std::move(given)),
      bucket(std::move(name)),
      credentials({world.environment, world.files.get(), world.http.get(), world.pauses.get(),
                   FewerAttempts(world.retry)}) {}

S3Client::S3Client(S3World world, std::string bucket)
    : S3Client(std::make_shared<Shared>(std::move(world), std::move(bucket)), nullptr) {}

std::shared_ptr<S3Client> S3Client::Until(
    std::shared_ptr<const std::atomic<bool>> cancelled) const {
  return std::shared_ptr<S3Client>(new S3Client(shared_, std::move(cancelled)));
}

std::string S3Client::NameOf(const Call& call) const {
  return absl::StrCat(call.method, " ", S3Url{bucket(), call.key}.ToString());
}

absl::StatusOr<Endpoint> S3Client::FindEndpointOnce() {
  const S3World& world = shared_->world;
  absl::MutexLock lock(&shared_->mutex);
  if (!shared_->has_endpoint) {
    absl::StatusOr<Endpoint> found = FindEndpoint(world.environment, *world.files, *world.http);
    if (!found.ok()) return found;
    shared_->endpoint = *std::move(found);
    shared_->has_endpoint = true;
  }
  return shared_->endpoint;
}

absl::Status S3Client::ErrorOf(const Call& call, const HttpResponse& response,
                               const Credentials& credentials) {
  return ErrorOfCall(
      {NameOf(call), bucket(), RightOf(call.method, call.key, call.query), response.status,
       ParseError(response.body), response.Header("x-amz-bucket-region")},
      credentials);
}

absl::StatusOr<HttpResponse> S3Client::SendOnce(const Call& call,
                                                const std::string& payload_sha256) {
  const absl::StatusOr<Endpoint> endpoint = FindEndpointOnce();
  if (!endpoint.ok()) return endpoint.status();
  const absl::StatusOr<Credentials> credentials = shared_->credentials.Get();
  if (!credentials.ok()) {
    return Named(NameOf(call), credentials.status());
  }
  const BucketPlace place = PlaceOf(*endpoint, bucket());
  const absl::Time now = shared_->world.pauses->Now();
  UnsignedRequest to_sign;
  to_sign.method = call.method;
  to_sign.path = absl::StrCat(place.path, PercentEncode(call.key, /*keep_slash=*/true));
  to_sign.query = call.query;
  to_sign.payload_sha256 = payload_sha256;
  HttpHeaders headers = call.headers;
  headers.push_back({"x-amz-content-sha256", payload_sha256});
  headers.push_back({"x-amz-date", AmzDate(now)});
  if (!credentials->session_token.empty()) {
    headers.push_back({"x-amz-security-token", credentials->session_token});
  }
  to_sign.headers = headers;
  to_sign.headers.push_back({"host", place.host});
  headers.push_back(
      {"Authorization", Authorization({credentials->access_key_id, credentials->secret_access_key,
                                       endpoint->region, "s3"},
                                      to_sign, now)});
  const std::string query = CanonicalQuery(call.query);
  HttpRequest request;
  request.method = call.method;
  request.url = absl::StrCat(endpoint->scheme, "://", place.host, to_sign.path,
                             query.empty() ? "" : "?", query);
  request.headers = std::move(headers);
  request.body = call.body;
  request.max_body_bytes = call.max_body_bytes;
  request.stall = shared_->world.stall;
  request.timeout = absl::Minutes(1) +
                    absl::Seconds((static_cast<int64_t>(call.body.size()) + call.max_body_bytes) /
                                  kSlowestBytesPerSecond);
  if (call.once) {
    request.timeout = request.connect_timeout = kOnce;
  } else {
    request.cancelled = cancelled_.get();
  }
  absl::StatusOr<HttpResponse> response = shared_->world.http->Send(request);
  if (!response.ok()) {
    return Named(NameOf(call), response.status());
  }
  if (response->status / 100 == 2) {
    if (call.check == nullptr) return response;
    if (absl::Status s = call.check(*response); !s.ok()) return s;
    return response;
  }
  const absl::Status error = ErrorOf(call, *response, *credentials);
  if (IsStaleCredentials(error)) shared_->credentials.Refused(*credentials);
  return error;
}

absl::StatusOr<HttpResponse> S3Client::Send(const Call& call) {
  const std::string payload_sha256 = Sha256Hex(call.body);
  absl::StatusOr<HttpResponse> response;
  bool renewed = false;
  const auto attempt = [&] {
    response = SendOnce(call, payload_sha256);
    if (IsStaleCredentials(response.status()) && !renewed) {
      renewed = true;
      response = SendOnce(call, payload_sha256);
    }
    return response.status();
  };
  const S3World& world = shared_->world;
  const absl::Status done =
      call.once ? attempt() : Retry(world.retry, *world.pauses, attempt, cancelled_.get());
  if (!done.ok()) return done;
  return response;
}

absl::Status S3Client::Get(const std::string& key, const std::string& etag, int64_t offset,
                           int64_t bytes, char* out) {
  if (bytes == 0) return absl::OkStatus();
  Call call{.method = "GET", .key = key};
  call.headers = {{"range", absl::StrCat("bytes=", offset, "-", offset + bytes - 1)},
                  {"if-match", etag}};
  call.max_body_bytes = std::max<int64_t>(bytes, 64 << 10);  // errors, too
  call.check = [&](const HttpResponse& response) -> absl::Status {
    // A server that does not know ranges would send the whole object.
    const std::string range = response.Header("content-range");
    if (response.status == 206 &&
        !absl::StartsWith(range, absl::StrCat("bytes ", offset, "-", offset + bytes - 1, "/"))) {
      return absl::InternalError(absl::StrCat(NameOf(call), ": asked for bytes ", offset, " to ",
                                              offset + bytes - 1, ", got '", range.substr(0, 100),
                                              "'"));
    }
    if (response.status != 206 && offset != 0) {
      return absl::InternalError(
          absl::StrCat(NameOf(call), ": this S3 server does not send ranges"));
    }
    if (static_cast<int64_t>(response.body.size()) != bytes) {
      return Truncated(NameOf(call),
                       absl::StrCat("asked for ", bytes, " bytes, got ", response.body.size()));
    }
    std::memcpy(out, response.body.data(), response.body.size());
    return absl::OkStatus();
  };
  const absl::StatusOr<HttpResponse> response = Send(call);
  if (absl::IsAborted(response.status())) {
    return absl::FailedPreconditionError(absl::StrCat(
        S3Url{bucket(), key}.ToString(), " was replaced by another object while it was read"));
  }
  return response.status();
}

absl::StatusOr<ObjectInfo> S3Client::Head(const std::string& key) {
  Call call{.method = "HEAD", .key = key};
  absl::StatusOr<HttpResponse> response = Send(call);
  if (!response.ok() && !absl::IsUnavailable(response.status()) &&
      !CodeOf(response.status()).empty()) {
    // An answer to HEAD has no text; the same question by GET says what is wrong.
    Call get{.method = "GET", .key = key, .headers = {{"range", "bytes=0-0"}}};
    if (absl::Status told = Send(get).status(); !told.ok()) return told;
    response = Send(call);  // with credentials that have been renewed meanwhile
  }
  if (!response.ok()) return response.status();
  ObjectInfo info;
  info.etag = response->Header("etag");
  info.tag = response->Header(kTagHeader);
  if (!absl::SimpleAtoi(response->Header("content-length"), &info.bytes) || info.bytes < 0 ||
      info.etag.empty()) {
    return absl::InternalError(
        absl::StrCat(NameOf(call), ": the answer has no Content-Length or no ETag"));
  }
  return info;
}

absl::Status S3Client::Put(const std::string& key, absl::string_view content,
                           const PutOptions& options) {
  Call call{.method = "PUT", .key = key, .body = content};
  if (options.if_absent) call.headers.push_back({"if-none-match", "*"});
  if (!options.tag.empty()) call.headers.push_back({kTagHeader, options.tag});
  const absl::Status put = Send(call).status();
  if (!absl::IsAborted(put)) return put;
  return absl::AlreadyExistsError(
      absl::StrCat("there is already an object ", S3Url{bucket(), key}.ToString()));
}

absl::Status S3Client::Delete(const std::string& key) {
  const absl::Status deleted = Send({.method = "DELETE", .key = key}).status();
  return absl::IsNotFound(deleted) ? absl::OkStatus() : deleted;
}

absl::StatusOr<std::vector<ListedObject>> S3Client::List(const std::string& prefix) {
  std::vector<ListedObject> objects;
  std::string next;
  for (int page_number = 0; page_number < kMaxPages; ++page_number) {
    Call call{.method = "GET", .query = {{"list-type", "2"}, {"prefix", prefix}}};
    if (!next.empty()) call.query.push_back({"continuation-token", next});
    call.max_body_bytes = kMaxListBytes;
    const absl::StatusOr<HttpResponse> response = Send(call);
    if (!response.ok()) return response.status();
    absl::StatusOr<ListPage> page = ParseListPage(response->body);
    if (!page.ok()) return Named(NameOf(call), page.status());
    for (ListedObject& object : page->objects) {
      if (absl::StartsWith(object.key, prefix)) objects.push_back(std::move(object));
    }
    if (page->next.empty()) {
      std::sort(objects.begin(), objects.end(),
                [](const ListedObject& a, const ListedObject& b) { return a.key < b.key; });
      return objects;
    }
    next = std::move(page->next);
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("s3://", bucket(), "/", prefix, " has more than ", kMaxPages, " pages"));
}

absl::StatusOr<std::string> S3Client::BeginUpload(const std::string& key, const std::string& tag) {
  Call call{.method = "POST", .key = key, .query = {{"uploads", ""}}};
  if (!tag.empty()) call.headers.push_back({kTagHeader, tag});
  const absl::StatusOr<HttpResponse> response = Send(call);
  if (!response.ok()) return response.status();
  absl::StatusOr<std::string> id = ParseUploadId(response->body);
  return id.ok() ? id : Named(NameOf(call), id.status());
}

absl::StatusOr<std::string> S3Client::UploadPart(const PendingUpload& upload, int number,
                                                 absl::string_view content) {
  Call call{.method = "PUT",
            .key = upload.key,
            .query = {{"partNumber", absl::StrCat(number)}, {"uploadId", upload.id}},
            .body = content};
  const absl::StatusOr<HttpResponse> response = Send(call);
  if (!response.ok()) return response.status();
  std::string etag = response->Header("etag");
  if (etag.empty()) {
    return absl::InternalError(absl::StrCat(NameOf(call), ": the answer has no ETag"));
  }
  return etag;
}

absl::Status S3Client::CompleteUpload(const PendingUpload& upload,
                                      const std::vector<std::string>& etags,
                                      const std::string& tag) {
  const std::string body = CompletedParts(etags);
  Call call{.method = "POST", .key = upload.key, .query = {{"uploadId", upload.id}}, .body = body};
  const auto is_there = [&] {
    const absl::StatusOr<ObjectInfo> there = Head(upload.key);
    return there.ok() && there->tag == tag;
  };
  call.check = [&](const HttpResponse& response) -> absl::Status {
    if (IsCompletedUpload(response.body)) return absl::OkStatus();
    // S3 begins to answer before it is done, and may then tell of an error.
    if (IsError(response.body)) {
      HttpResponse late = response;
      late.status = 500;
      return ErrorOf(call, late, {});
    }
    if (is_there()) return absl::OkStatus();
    return Truncated(NameOf(call), "the answer is none of S3, and the object is not there");
  };
  const absl::Status done = Send(call).status();
  if (CodeOf(done) != "NoSuchUpload") return done;
  // It is gone, perhaps because an earlier attempt succeeded whose answer was lost.
  return is_there() ? absl::OkStatus() : done;
}

absl::Status S3Client::AbortUpload(const PendingUpload& upload) { return Abort(upload, false); }

absl::Status S3Client::AbortUploadOnce(const PendingUpload& upload) { return Abort(upload, true); }

absl::Status S3Client::Abort(const PendingUpload& upload, bool once) {
  Call call{.method = "DELETE", .key = upload.key, .query = {{"uploadId", upload.id}}};
  call.once = once;
  const absl::Status aborted = Send(call).status();
  return CodeOf(aborted) == "NoSuchUpload" ? absl::OkStatus() : aborted;
}

absl::StatusOr<std::vector<PendingUpload>> S3Client::ListUploads(const std::string& prefix) {
  std::vector<PendingUpload> uploads;
  PendingUpload next;
  for (int page_number = 0; page_number < kMaxPages; ++page_number) {
    Call call{.method = "GET", .query = {{"uploads", ""}, {"prefix", prefix}}};
    if (!next.key.empty()) {
      call.query.push_back({"key-marker", next.key});
      if (!next.id.empty()) call.query.push_back({"upload-id-marker", next.id});
    }
    call.max_body_bytes = kMaxListBytes;
    const absl::StatusOr<HttpResponse> response = Send(call);
    if (!response.ok()) return response.status();
    absl::StatusOr<UploadsPage> page = ParseUploadsPage(response->body);
    if (!page.ok()) return Named(NameOf(call), page.status());
    for (PendingUpload& upload : page->uploads) {
      if (absl::StartsWith(upload.key, prefix)) uploads.push_back(std::move(upload));
    }
    if (!page->more) return uploads;
    next = std::move(page->next);
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("s3://", bucket(), "/", prefix, " has more than ", kMaxPages, " pages"));
}

}  // namespace espalier::s3
