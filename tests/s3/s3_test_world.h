// The S3 server that run_with_s3.py started, as tests see it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "base/random_id.h"
#include "storage/s3/curl_transport.h"
#include "storage/s3/s3_client.h"
#include "storage/s3_checkpoint_store.h"

namespace espalier::s3 {

// Remembers the pauses instead of making them; its clock goes on by them. The pauses are the
// longest that could be.
class RememberedPauses : public Pauses {
 public:
  absl::Time Now() override {
    absl::MutexLock lock(&mutex_);
    return absl::Now() + slept_;
  }
  void Sleep(absl::Duration duration) override {
    absl::MutexLock lock(&mutex_);
    slept_ += duration;
  }
  double Chance() override { return 1; }
  absl::Duration slept() {
    absl::MutexLock lock(&mutex_);
    return slept_;
  }

 private:
  absl::Mutex mutex_;
  absl::Duration slept_;
};

inline std::string Variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

inline std::string TestBucket() { return Variable("S3_TEST_BUCKET"); }

// `user`: "" for the one that may do everything, "S3_STRANGER_", "S3_ROLE_".
inline S3World TestWorld(const std::string& user = "") {
  S3World world = SystemS3World();
  world.environment = [user](const std::string& name) { return Variable(user + name); };
  world.pauses = std::make_shared<RememberedPauses>();
  return world;
}

// Tells the fault proxy what to do; see fault_proxy.py.
class Proxy {
 public:
  // `rules`: a JSON list with single quotes.
  void Set(std::string rules) {
    for (char& c : rules) c = c == '\'' ? '"' : c;
    Send("PUT", "/__faults", rules);
    Send("DELETE", "/__requests", "");
  }
  // "GET /bucket/key 200", ... since the last Set.
  std::vector<std::string> Requests() {
    return absl::StrSplit(Send("GET", "/__requests", ""), '\n', absl::SkipEmpty());
  }
  int Count(const std::string& part) {
    int count = 0;
    for (const std::string& request : Requests()) {
      count += request.find(part) != std::string::npos ? 1 : 0;
    }
    return count;
  }

 private:
  std::string Send(const std::string& method, const std::string& path, const std::string& body) {
    HttpRequest request;
    request.method = method;
    request.url = Variable("AWS_ENDPOINT_URL") + path;
    request.body = body;
    request.through_proxy = false;
    const absl::StatusOr<HttpResponse> response = http_->Send(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? response->body : "";
  }

  const std::unique_ptr<HttpTransport> http_ = NewCurlTransport("");
};

inline std::string NewPrefix() { return absl::StrCat("test/", *RandomId()); }

inline std::unique_ptr<S3CheckpointStore> NewStore(const std::string& prefix,
                                                   S3World world = TestWorld()) {
  auto store = S3CheckpointStore::Create(absl::StrCat("s3://", TestBucket(), "/", prefix), world);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

}  // namespace espalier::s3
