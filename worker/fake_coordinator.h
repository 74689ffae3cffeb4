// Fake coordinator with what a worker needs: membership, rendezvous store, one dataset artifact.
// For tests.
#pragma once

#include <grpcpp/server_builder.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "espalier/v1/cluster.grpc.pb.h"
#include "espalier/v1/models.grpc.pb.h"

namespace espalier {

class FakeCoordinator : public v1::Cluster::Service, public v1::Models::Service {
 public:
  // `data_dir`: what workers are told; they share it.
  explicit FakeCoordinator(std::string data_dir) : data_dir_(std::move(data_dir)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<v1::Cluster::Service*>(this));
    builder.RegisterService(static_cast<v1::Models::Service*>(this));
    server_ = builder.BuildAndStart();
  }
  ~FakeCoordinator() override { server_->Shutdown(absl::ToChronoTime(absl::Now())); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  void SetDataset(const std::string& name, const std::string& sha256, const std::string& content) {
    absl::MutexLock lock(&mutex_);
    artifact_.set_name(name);
    artifact_.set_kind(v1::Artifact::DATASET);
    artifact_.set_sha256(sha256);
    artifact_.set_bytes(static_cast<int64_t>(content.size()));
    artifact_.clear_files();
    artifact_.add_files("data");
    content_ = content;
  }
  // Expires all leases granted so far.
  void ForgetLeases() {
    absl::MutexLock lock(&mutex_);
    valid_from_ = epoch_ + 1;
  }
  int left() const {
    absl::MutexLock lock(&mutex_);
    return left_;
  }
  // Number of Gets that timed out.
  int misses() const {
    absl::MutexLock lock(&mutex_);
    return misses_;
  }
  // Returns the epoch of the last worker that joined as `name`, or 0.
  uint64_t EpochOf(const std::string& name) const {
    absl::MutexLock lock(&mutex_);
    auto it = epochs_.find(name);
    return it == epochs_.end() ? 0 : it->second;
  }

  // Returns the key that the worker demands of its callers.
  std::string CallKeyOf(const std::string& worker_id) const {
    absl::MutexLock lock(&mutex_);
    auto it = call_keys_.find(worker_id);
    return it == call_keys_.end() ? "" : it->second;
  }

  void SetLeaseSeconds(double seconds) {
    absl::MutexLock lock(&mutex_);
    lease_seconds_ = seconds;
  }

  // Requires this authorization of every Join; empty: none.
  void WantAuthorization(const std::string& value) {
    absl::MutexLock lock(&mutex_);
    wanted_authorization_ = value;
  }

  grpc::Status Join(grpc::ServerContext* context, const v1::JoinRequest* request,
                    v1::JoinReply* reply) override {
    absl::MutexLock lock(&mutex_);
    const auto shown = context->client_metadata().find("authorization");
    if (!wanted_authorization_.empty() &&
        (shown == context->client_metadata().end() || shown->second != wanted_authorization_)) {
      return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "an API key is required");
    }
    epochs_[request->name()] = ++epoch_;
    reply->mutable_lease()->set_worker_id(absl::StrCat("w", epoch_));
    reply->set_data_dir(data_dir_);
    reply->set_shares_data_dir(true);
    call_keys_[reply->lease().worker_id()] = request->call_key();
    reply->mutable_lease()->set_epoch(epoch_);
    reply->set_heartbeat_seconds(0.05);
    reply->set_lease_seconds(lease_seconds_);
    return grpc::Status::OK;
  }
  // Answers Drain with these jobs; without any, and once there are none, the worker is drained.
  void SetJobs(std::vector<std::string> jobs) {
    absl::MutexLock lock(&mutex_);
    jobs_ = std::move(jobs);
  }
  // Epochs of the leases under which workers drain.
  std::vector<uint64_t> drains() const {
    absl::MutexLock lock(&mutex_);
    return drains_;
  }
  // As a coordinator of an older release.
  void KnowNoDrain() {
    absl::MutexLock lock(&mutex_);
    knows_drain_ = false;
  }
  // Heartbeats and Drain are not answered any more.
  void Hang() {
    absl::MutexLock lock(&mutex_);
    hangs_ = true;
  }

  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest* request,
                         v1::HeartbeatReply* reply) override {
    absl::MutexLock lock(&mutex_);
    if (hangs_) return {grpc::StatusCode::UNAVAILABLE, "it hangs"};
    reply->set_drained(!drains_.empty() && drains_.back() == request->lease().epoch() &&
                       jobs_.empty());
    return Check(request->lease());
  }
  grpc::Status Drain(grpc::ServerContext*, const v1::DrainRequest* request,
                     v1::DrainReply* reply) override {
    absl::MutexLock lock(&mutex_);
    if (hangs_) return {grpc::StatusCode::UNAVAILABLE, "it hangs"};
    if (!knows_drain_) return {grpc::StatusCode::UNIMPLEMENTED, ""};
    if (grpc::Status s = Check(request->lease()); !s.ok()) return s;
    drains_.push_back(request->lease().epoch());
    reply->mutable_jobs()->Assign(jobs_.begin(), jobs_.end());
    return grpc::Status::OK;
  }
  grpc::Status Leave(grpc::ServerContext*, const v1::LeaveRequest*, v1::LeaveReply*) override {
    absl::MutexLock lock(&mutex_);
    ++left_;
    return grpc::Status::OK;
  }
  grpc::Status StoreSet(grpc::ServerContext*, const v1::StoreSetRequest* request,
                        v1::StoreSetReply*) override {
    absl::MutexLock lock(&mutex_);
    if (grpc::Status s = Check(request->lease()); !s.ok()) return s;
    values_[Key(*request)] = request->value();
    changed_.SignalAll();
    return grpc::Status::OK;
  }
  grpc::Status StoreGet(grpc::ServerContext*, const v1::StoreGetRequest* request,
                        v1::StoreGetReply* reply) override {
    const absl::Time deadline = absl::Now() + absl::Seconds(request->wait_seconds());
    absl::MutexLock lock(&mutex_);
    if (grpc::Status s = Check(request->lease()); !s.ok()) return s;
    while (values_.count(Key(*request)) == 0) {
      if (!changed_.WaitWithDeadline(&mutex_, deadline)) continue;
      ++misses_;
      return grpc::Status::OK;
    }
    reply->set_found(true);
    reply->set_value(values_[Key(*request)]);
    return grpc::Status::OK;
  }

  grpc::Status Get(grpc::ServerContext*, const v1::DownloadRequest* request,
                   grpc::ServerWriter<v1::DownloadReply>* writer) override {
    v1::DownloadReply reply;
    std::string content;
    {
      absl::MutexLock lock(&mutex_);
      if (request->name() != artifact_.name()) {
        return {grpc::StatusCode::NOT_FOUND, absl::StrCat("no artifact '", request->name(), "'")};
      }
      *reply.mutable_artifact() = artifact_;
      content = content_;
    }
    if (!writer->Write(reply)) return grpc::Status::OK;
    reply.mutable_file()->set_name("data");
    if (!writer->Write(reply)) return grpc::Status::OK;
    for (size_t at = 0; at < content.size(); at += 1000) {
      reply.set_chunk(content.substr(at, 1000));
      if (!writer->Write(reply)) return grpc::Status::OK;
    }
    return grpc::Status::OK;
  }

 private:
  template <typename Request>
  static std::string Key(const Request& request) {
    return absl::StrCat(request.job_id(), "/", request.attempt(), "/", request.key());
  }
  grpc::Status Check(const v1::Lease& lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (lease.epoch() >= valid_from_) return grpc::Status::OK;
    return {grpc::StatusCode::FAILED_PRECONDITION, "stale lease"};
  }

  const std::string data_dir_;
  double lease_seconds_ ABSL_GUARDED_BY(mutex_) = 5;
  std::string wanted_authorization_ ABSL_GUARDED_BY(mutex_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> epochs_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> call_keys_ ABSL_GUARDED_BY(mutex_);
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t valid_from_ ABSL_GUARDED_BY(mutex_) = 0;
  v1::Artifact artifact_ ABSL_GUARDED_BY(mutex_);
  std::string content_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> jobs_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> drains_ ABSL_GUARDED_BY(mutex_);
  bool hangs_ ABSL_GUARDED_BY(mutex_) = false;
  bool knows_drain_ ABSL_GUARDED_BY(mutex_) = true;
  int left_ ABSL_GUARDED_BY(mutex_) = 0;
  int misses_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace espalier
