// The credentials of this process, from the places where AWS's own programs look for them.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/file_system.h"
#include "storage/s3/aws_profile.h"
#include "storage/s3/http.h"
#include "storage/s3/retry.h"

namespace espalier::s3 {

struct Credentials {
  std::string access_key_id, secret_access_key;
  std::string session_token;  // may be empty
  absl::Time expires = absl::InfiniteFuture();
  std::string source;  // for messages: "the environment"
};

// What the places are read with; all must outlive the user.
struct CredentialTools {
  Environment environment;
  FileSystem* files = nullptr;
  HttpTransport* http = nullptr;
  Pauses* pauses = nullptr;
  RetryPolicy retry;
};

// Looks once, in this order: environment; shared files; web identity (STS); container endpoint;
// instance metadata. FailedPrecondition, naming the places and what was there, if none has any, or
// if one is configured but cannot be used: a later place must not take its part silently.
// Unavailable if a service did not answer.
absl::StatusOr<Credentials> FindCredentials(const CredentialTools& tools);

// Keeps credentials and replaces them before they expire. Thread-safe.
class CredentialCache {
 public:
  explicit CredentialCache(CredentialTools tools) : tools_(std::move(tools)) {}

  absl::StatusOr<Credentials> Get();
  // The service did not take these: the next Get looks again.
  void Refused(const Credentials& credentials);

 private:
  bool HasValid() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CredentialTools tools_;
  absl::Mutex mutex_;
  absl::CondVar looked_;
  bool looking_ ABSL_GUARDED_BY(mutex_) = false;  // a caller does, without the mutex
  Credentials current_ ABSL_GUARDED_BY(mutex_);
  absl::Time look_again_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace espalier::s3
