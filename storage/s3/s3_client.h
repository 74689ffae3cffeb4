// Requests to one bucket, signed and repeated.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/file_system.h"
#include "storage/s3/answers.h"
#include "storage/s3/credentials.h"
#include "storage/s3/endpoint.h"
#include "storage/s3/http.h"
#include "storage/s3/retry.h"

namespace espalier::s3 {

// The world as S3 needs it. All are shared and thread-safe.
struct S3World {
  Environment environment;
  std::shared_ptr<FileSystem> files;
  std::shared_ptr<HttpTransport> http;
  std::shared_ptr<Pauses> pauses;
  RetryPolicy retry;
  absl::Duration stall =
      absl::Seconds(30);  // an exchange that stands still for so long is repeated
};

// The process's own environment and files, libcurl and the system's clock. Sends nothing.
S3World SystemS3World();

struct ObjectInfo {
  int64_t bytes = 0;
  std::string etag;
  std::string tag;  // what PutOptions.tag gave
};

struct PutOptions {
  bool if_absent = false;  // AlreadyExists if there is an object
  std::string tag;         // kept with the object, to know it again after a lost answer
};

// Thread-safe. Errors name bucket and key, S3's status, code and message, and the remedy: NotFound;
// AlreadyExists; FailedPrecondition for what is set up wrong (no bucket, no credentials, another
// region) and for an object that has changed; PermissionDenied; ResourceExhausted; Unavailable if
// all attempts failed.
class S3Client {
 public:
  S3Client(S3World world, std::string bucket);

  // The same client, with calls that end within a second once `cancelled` is true: with Cancelled,
  // or with their last error.
  std::shared_ptr<S3Client> Until(std::shared_ptr<const std::atomic<bool>> cancelled) const;

  const std::string& bucket() const { return shared_->bucket; }

  // Reads bytes [offset, offset + bytes) of the object that had this ETag.
  absl::Status Get(const std::string& key, const std::string& etag, int64_t offset, int64_t bytes,
                   char* out);
  absl::StatusOr<ObjectInfo> Head(const std::string& key);
  absl::Status Put(const std::string& key, absl::string_view content, const PutOptions& options);
  // OK if there is no such object.
  absl::Status Delete(const std::string& key);
  // All objects whose keys begin so, by key.
  absl::StatusOr<std::vector<ListedObject>> List(const std::string& prefix);

  absl::StatusOr<std::string> BeginUpload(const std::string& key, const std::string& tag);
  // Returns the part's ETag.
  absl::StatusOr<std::string> UploadPart(const PendingUpload& upload, int number,
                                         absl::string_view content);
  // `tag` is that of BeginUpload.
  absl::Status CompleteUpload(const PendingUpload& upload, const std::vector<std::string>& etags,
                              const std::string& tag);
  // OK if there is no such upload.
  absl::Status AbortUpload(const PendingUpload& upload);
  // Tries it once, for a few seconds, though the client be cancelled: for who gives up.
  absl::Status AbortUploadOnce(const PendingUpload& upload);
  // All incomplete uploads of keys that begin so.
  absl::StatusOr<std::vector<PendingUpload>> ListUploads(const std::string& prefix);

 private:
  struct Call {
    std::string method;
    std::string key;  // empty: the bucket
    HttpQuery query;
    HttpHeaders headers;
    absl::string_view body;
    int64_t max_body_bytes = 1 << 20;
    // Not repeated, not cancelled.
    bool once = false;
    // Looks at an answer of status 2xx; Unavailable repeats the request.
    std::function<absl::Status(const HttpResponse&)> check;
  };

  // Repeats the call until it has an answer of status 2xx.
  absl::StatusOr<HttpResponse> Send(const Call& call);
  absl::StatusOr<HttpResponse> SendOnce(const Call& call, const std::string& payload_sha256);
  absl::StatusOr<Endpoint> FindEndpointOnce();
  absl::Status ErrorOf(const Call& call, const HttpResponse& response,
                       const Credentials& credentials);
  std::string NameOf(const Call& call) const;

  struct Shared {
    Shared(S3World given, std::string name);

    const S3World world;
    const std::string bucket;
    CredentialCache credentials;
    absl::Mutex mutex;
    bool has_endpoint ABSL_GUARDED_BY(mutex) = false;
    Endpoint endpoint ABSL_GUARDED_BY(mutex);
  };
  S3Client(std::shared_ptr<Shared> shared, std::shared_ptr<const std::atomic<bool>> cancelled)
      : shared_(std::move(shared)), cancelled_(std::move(cancelled)) {}
  absl::Status Abort(const PendingUpload& upload, bool once);

  const std::shared_ptr<Shared> shared_;                      // by all clients from Until
  const std::shared_ptr<const std::atomic<bool>> cancelled_;  // may be null
};

}  // namespace espalier::s3
