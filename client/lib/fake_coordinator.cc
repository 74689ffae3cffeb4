#include "client/lib/fake_coordinator.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "espalier/v1/cluster.grpc.pb.h"
#include "espalier/v1/inference.grpc.pb.h"
#include "espalier/v1/models.grpc.pb.h"
#include "espalier/v1/plan.grpc.pb.h"
#include "espalier/v1/replay.grpc.pb.h"
#include "espalier/v1/training.grpc.pb.h"

namespace espalier {
namespace {

using grpc::ServerContext;
using grpc::Status;

Status ToGrpc(const absl::Status& status) {
  return Status(static_cast<grpc::StatusCode>(status.raw_code()), std::string(status.message()));
}

Status OnceCallerHasGone(ServerContext* context) {
  while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return Status(grpc::StatusCode::CANCELLED, "the caller has gone");
}

class FakeTraining : public v1::Training::Service {
 public:
  FakeTraining(FakeState* state, std::recursive_mutex* mutex) : s_(*state), mutex_(*mutex) {}

  Status Submit(ServerContext* context, const v1::SubmitRequest* request,
                v1::SubmitReply* reply) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    auto found = context->client_metadata().find("authorization");
    s_.authorizations.push_back(found == context->client_metadata().end()
                                    ? ""
                                    : std::string(found->second.data(), found->second.size()));
    s_.submits.push_back(*request);
    if (!s_.submit_status.ok()) return ToGrpc(s_.submit_status);
    reply->set_job_id(s_.job.id());
    *reply->mutable_trained() = s_.dry_run.trained();
    *reply->mutable_notes() = s_.dry_run.notes();
    return Status::OK;
  }
  Status DryRun(ServerContext* context, const v1::DryRunRequest* request,
                v1::DryRunReply* reply) override {
    std::unique_lock<std::recursive_mutex> lock(mutex_);
    s_.dry_runs.push_back(*request);
    *reply = s_.dry_run;
    if (!s_.dry_runs_hang) return Status::OK;
    lock.unlock();
    return OnceCallerHasGone(context);
  }
  Status Watch(ServerContext*, const v1::WatchRequest* request,
               grpc::ServerWriter<v1::JobEvent>* writer) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    const bool first = s_.watches.empty();
    s_.watches.push_back(*request);
    int sent = 0;
    for (const auto& event : s_.events) {
      if (event.has_step() && event.step().step() < request->from_step()) continue;
      if (event.has_validation() && event.validation().step() < request->from_step() - 1) continue;
      if (first && s_.drop_watch_after == sent)
        return Status(grpc::StatusCode::UNAVAILABLE, "dropped");
      if (!writer->Write(event)) {
        ++s_.broken_off;
        break;
      }
      ++sent;
    }
    return Status::OK;
  }
  Status Get(ServerContext*, const v1::GetJobRequest* request, v1::GetJobReply* reply) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (s_.unavailable > 0) {
      --s_.unavailable;
      return Status(grpc::StatusCode::UNAVAILABLE, "not now", s_.unavailable_details);
    }
    if (request->job_id() != s_.job.id()) {
      return Status(grpc::StatusCode::NOT_FOUND, absl::StrCat("no job ", request->job_id()));
    }
    *reply->mutable_job() = s_.job;
    for (const auto& event : s_.events) {
      if (!request->with_reports()) break;
      if (event.has_step()) *reply->add_reports() = event.step();
      if (event.has_validation()) *reply->add_validations() = event.validation();
      if (event.has_message()) *reply->add_messages() = event.message();
    }
    return Status::OK;
  }
  Status Cancel(ServerContext*, const v1::CancelRequest* request, v1::CancelReply* reply) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (request->job_id() != s_.job.id()) return Status(grpc::StatusCode::NOT_FOUND, "no job");
    *reply->mutable_job() = s_.job;
    return Status::OK;
  }
  Status Checkpoint(ServerContext*, const v1::CheckpointRequest* request,
                    v1::CheckpointReply* reply) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (request->job_id() != s_.job.id()) return Status(grpc::StatusCode::NOT_FOUND, "no job");
    *reply->mutable_job() = s_.job;
    reply->mutable_job()->set_checkpoint_step(2);
    return Status::OK;
  }
  Status List(ServerContext*, const v1::ListJobsRequest* request,
              v1::ListJobsReply* reply) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    s_.job_lists.push_back(*request);
    std::vector<v1::Job> jobs;
    if (!s_.job.id().empty()) jobs.push_back(s_.job);
    for (int i = 1; i <= s_.more_jobs; ++i) {
      jobs.push_back(s_.job);
      jobs.back().set_id(absl::StrCat("more-", i));
      if (s_.more_jobs_state != v1::JOB_STATE_UNSPECIFIED)
        jobs.back().set_state(s_.more_jobs_state);
    }
    if (request->states_size() > 0) {
      std::erase_if(jobs, [&](const v1::Job& job) {
        return std::find(request->states().begin(), request->states().end(), job.state()) ==
               request->states().end();
      });
    }
    if (request->newest_first()) std::reverse(jobs.begin(), jobs.end());
    size_t at = request->page_token().empty() ? 0 : std::stoul(request->page_token());
    const size_t size = request->page_size() == 0
                            ? 10
                            : std::min<size_t>(10, static_cast<size_t>(request->page_size()));
    const size_t end = std::min(jobs.size(), at + size);
    for (; at < end; ++at) *reply->add_jobs() = jobs[at];
    if (end < jobs.size()) reply->set_next_page_token(absl::StrCat(end));
    reply->set_matching(static_cast<int64_t>(jobs.size()));
    return Status::OK;
  }
  Status Update(ServerContext*, const v1::UpdateJobRequest* request,
                v1::UpdateJobReply* reply) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    s_.updates.push_back(*request);
    *reply->mutable_job() = s_.job;
    return ToGrpc(s_.update_status);
  }
  Status Delete(ServerContext*, const v1::DeleteJobRequest* request, v1::DeleteJobReply*) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (s_.delete_job_status.ok()) s_.deleted_jobs.push_back(request->job_id());
    return ToGrpc(s_.delete_job_status);
  }

 private:
  FakeState& s_;
  std::recursive_mutex& mutex_;
};

class FakeReplay : public v1::Replay::Service {
 public:
  FakeReplay(FakeState* state, std::recursive_mutex* mutex) : s_(*state), mutex_(*mutex) {}
  Status List(ServerContext*, const v1::ListReplaysRequest*, v1::ListReplaysReply* reply) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    *reply->mutable_replays() = {s_.replays.begin(), s_.replays.end()};
    return Status::OK;
  }
  Status Get(ServerContext*, const v1::GetReplayRequest* request,
             v1::GetReplayReply* reply) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    for (const v1::ReplayInfo& replay : s_.replays) {
      if (replay.id() == request->replay_id()) *reply->mutable_replay() = replay;
    }
    return reply->has_replay() ? Status::OK : NoReplay(request->replay_id());
  }
  Status Delete(ServerContext*, const v1::DeleteReplayRequest* request,
                v1::DeleteReplayReply*) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    const size_t before = s_.replays.size();
    std::erase_if(s_.replays, [&](const v1::ReplayInfo& replay) {
      return replay.id() == request->replay_id();
    });
    return s_.replays.size() < before ? Status::OK : NoReplay(request->replay_id());
  }
  Status Query(ServerContext*, const v1::QueryHistoryRequest* request,
               grpc::ServerWriter<v1::QueryHistoryReply>* writer) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    s_.queries.push_back(*request);
    if (s_.unavailable > 0) {
      --s_.unavailable;
      return Status(grpc::StatusCode::UNAVAILABLE, "not now", s_.unavailable_details);
    }
    constexpr size_t kPerReply = 3;
    for (size_t at = 0; at < s_.history.size(); at += kPerReply) {
      v1::QueryHistoryReply reply;
      for (size_t i = at; i < std::min(at + kPerReply, s_.history.size()); ++i) {
        *reply.add_rows() = s_.history[i];
      }
      if (!writer->Write(reply)) {
        ++s_.broken_off;
        break;
      }
    }
    return ToGrpc(s_.history_status);
  }

 private:
  static Status NoReplay(const std::string& id) {
    return Status(grpc::StatusCode::NOT_FOUND, absl::StrCat("there is no replay '", id, "'"));
  }

  FakeState& s_;
  std::recursive_mutex& mutex_;
};

class FakePlanner : public v1::Planner::Service {
 public:
  FakePlanner(FakeState* state, std::recursive_mutex* mutex) : s_(*state), mutex_(*mutex) {}
  Status Explain(ServerContext*, const v1::ExplainRequest* request,
                 v1::ExplainReply* reply) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    s_.explains.push_back(*request);
    *reply = s_.explanation;
    return Status::OK;
  }
  Status Export(ServerContext*, const v1::ExportRequest*, v1::ExportReply* reply) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    reply->set_json(s_.exported);
    return Status::OK;
  }
  Status Diff(ServerContext*, const v1::DiffRequest* request, v1::DiffReply* reply) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    s_.diffs.push_back(*request);
    *reply = s_.difference;
    return Status::OK;
  }
  Status Profile(ServerContext*, const v1::ProfileRequest*, v1::ProfileReply* reply) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    *reply = s_.profile;
    return Status::OK;
  }
  Status Machines(ServerContext*, const v1::MachinesRequest*, v1::MachinesReply* reply) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    *reply = s_.machines;
    return Status::OK;
  }

 private:
  FakeState& s_;
  std::recursive_mutex& mutex_;
};

class FakeModels : public v1::Models::Service {
 public:
  FakeModels(FakeState* state, std::recursive_mutex* mutex) : s_(*state), mutex_(*mutex) {}

  Status Upload(ServerContext* context, grpc::ServerReader<v1::UploadRequest>* reader,
                v1::UploadReply* reply) override {
    std::unique_lock<std::recursive_mutex> lock(mutex_);
    v1::UploadRequest part;
    v1::Artifact artifact;
    std::map<std::string, std::string> files;
    std::string* file = nullptr;
    while (reader->Read(&part)) {
      if (part.has_header()) {
        if (part.header().idempotency_key().empty())
          return Status(grpc::StatusCode::INVALID_ARGUMENT, "no key");
        artifact.set_name(part.header().name());
        artifact.set_kind(part.header().kind());
        *artifact.mutable_metadata() = part.header().metadata();
        artifact.set_owner(s_.owner);
      } else if (part.has_file()) {
        file = &files[part.file().name()];
      } else if (part.part_case() == v1::UploadRequest::kChunk) {
        if (part.chunk().size() > (1 << 20))
          return Status(grpc::StatusCode::INVALID_ARGUMENT, "chunk too large");
        *file += part.chunk();
      } else {
        Sha256 sum;
        sum.Add(*file);
        if (sum.Hex() != part.sha256()) return Status(grpc::StatusCode::DATA_LOSS, "wrong sum");
      }
    }
    if (s_.artifacts.count(artifact.name()) > 0)
      return Status(grpc::StatusCode::ALREADY_EXISTS, "there already");
    Sha256 whole;
    for (const auto& [name, content] : files) {
      artifact.add_files(name);
      artifact.set_bytes(artifact.bytes() + static_cast<int64_t>(content.size()));
      Sha256 sum;
      sum.Add(content);
      whole.Add(files.size() == 1 ? content : absl::StrCat(name, " ", sum.Hex(), "\n"));
    }
    artifact.set_sha256(whole.Hex());
    ++s_.uploads;
    s_.artifacts[artifact.name()] = artifact;
    s_.files[artifact.name()] = files;
    *reply->mutable_artifact() = artifact;
    if (!s_.uploads_hang) return Status::OK;
    lock.unlock();
    return OnceCallerHasGone(context);
  }
  Status List(ServerContext*, const v1::ListArtifactsRequest* request,
              v1::ListArtifactsReply* reply) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    s_.artifact_lists.push_back(*request);
    reply->set_matching(static_cast<int64_t>(s_.artifacts.size()));
    for (const auto& [name, artifact] : s_.artifacts) *reply->add_artifacts() = artifact;
    reply->set_owner(s_.owner);
    reply->set_upload_salt(s_.upload_salt);
    return Status::OK;
  }
  Status Get(ServerContext*, const v1::DownloadRequest* request,
             grpc::ServerWriter<v1::DownloadReply>* writer) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    auto found = s_.artifacts.find(request->name());
    if (found == s_.artifacts.end()) {
      return Status(grpc::StatusCode::NOT_FOUND, absl::StrCat("no artifact ", request->name()));
    }
    v1::DownloadReply part;
    *part.mutable_artifact() = found->second;
    writer->Write(part);
    for (const auto& [name, content] : s_.files[request->name()]) {
      part.mutable_file()->set_name(name);
      writer->Write(part);
      for (size_t at = 0; at < content.size(); at += 1 << 20) {
        part.set_chunk(content.substr(at, 1 << 20));
        if (s_.corrupt_downloads) (*part.mutable_chunk())[0] ^= 1;
        writer->Write(part);
      }
    }
    return Status::OK;
  }

  Status Delete(ServerContext*, const v1::DeleteArtifactRequest* request,
                v1::DeleteArtifactReply*) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (!s_.delete_status.ok()) return ToGrpc(s_.delete_status);
    if (s_.artifacts.erase(request->name()) == 0) {
      return Status(grpc::StatusCode::NOT_FOUND, absl::StrCat("no artifact ", request->name()));
    }
    s_.deleted.push_back(request->name());
    if (request->force()) s_.forced.push_back(request->name());
    return Status::OK;
  }
  Status Quantize(ServerContext*, const v1::QuantizeRequest* request,
                  grpc::ServerWriter<v1::QuantizeReply>* writer) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    s_.quantizes.push_back(*request);
    v1::QuantizeReply reply;
    for (const auto& progress : s_.packing) {
      *reply.mutable_progress() = progress;
      writer->Write(reply);
    }
    reply.mutable_artifact()->set_name(request->out());
    reply.mutable_artifact()->set_kind(v1::Artifact::MODEL);
    writer->Write(reply);
    return Status::OK;
  }

 private:
  FakeState& s_;
  std::recursive_mutex& mutex_;
};

class FakeCluster : public v1::Cluster::Service {
 public:
  FakeCluster(FakeState* state, std::recursive_mutex* mutex) : s_(*state), mutex_(*mutex) {}
  grpc::Status Status(ServerContext*, const v1::ClusterStatusRequest*,
                      v1::ClusterStatusReply* reply) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    *reply = s_.status;
    return grpc::Status::OK;
  }
  grpc::Status Backup(ServerContext*, const v1::BackupRequest*,
                      grpc::ServerWriter<v1::BackupReply>* writer) override {
    v1::BackupReply part;
    for (const char* chunk : {"the ", "store"}) {
      part.set_chunk(chunk);
      writer->Write(part);
    }
    part.set_sha256(Sha256Hex(s_.corrupt_downloads ? "another" : "the store"));
    writer->Write(part);
    return grpc::Status::OK;
  }

 private:
  FakeState& s_;
  std::recursive_mutex& mutex_;
};

class FakeInference : public v1::Inference::Service {
 public:
  FakeInference(FakeState* state, std::recursive_mutex* mutex) : s_(*state), mutex_(*mutex) {}
  Status Serve(ServerContext*, const v1::ServeModelRequest* request,
               v1::ServeModelReply* reply) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    s_.serves.push_back(*request);
    *reply->mutable_model() = s_.served;
    return ToGrpc(s_.serve_status);
  }
  Status Embed(ServerContext*, const v1::EmbedRequest* request, v1::EmbedReply* reply) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    s_.embeds.push_back(*request);
    for (int i = 0; i < request->inputs_size(); ++i) {
      v1::Embedding* const embedding = reply->add_embeddings();
      embedding->add_values(0.6f);
      embedding->add_values(i == 0 ? 0.8f : -0.8f);
    }
    return Status::OK;
  }
  Status ListServed(ServerContext*, const v1::ListServedRequest*,
                    v1::ListServedReply* reply) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    *reply->add_models() = s_.served;
    return Status::OK;
  }
  Status VerifyLossless(ServerContext* context, const v1::VerifyLosslessRequest* request,
                        grpc::ServerWriter<v1::VerifyLosslessReply>* writer) override {
    std::unique_lock<std::recursive_mutex> lock(mutex_);
    s_.verifies.push_back(*request);
    if (s_.proofs_hang) {
      lock.unlock();
      return OnceCallerHasGone(context);
    }
    v1::VerifyLosslessReply reply;
    for (const auto& progress : s_.proof_progress) {
      *reply.mutable_progress() = progress;
      writer->Write(reply);
    }
    *reply.mutable_report() = s_.proof;
    writer->Write(reply);
    return Status::OK;
  }
  Status Generate(ServerContext* context, const v1::GenerateRequest* request,
                  grpc::ServerWriter<v1::GenerateReply>* writer) override {
    std::vector<v1::GenerateReply> replies;
    double seconds = 0;
    int concurrent_generates = 0;
    {
      const std::lock_guard<std::recursive_mutex> lock(mutex_);
      s_.generates.push_back(*request);
      if (s_.unavailable > 0) {
        --s_.unavailable;
        return Status(grpc::StatusCode::UNAVAILABLE, "not now", s_.unavailable_details);
      }
      if (!s_.warning.empty()) context->AddInitialMetadata("espalier-warning", s_.warning);
      replies = request->speculation() == v1::SPECULATION_ON ? s_.speculated : s_.replies;
      seconds = s_.answer_seconds;
      concurrent_generates = s_.concurrent_generates;
    }
    if (!WaitForCalls(concurrent_generates))
      return Status(grpc::StatusCode::DEADLINE_EXCEEDED, "the others are late");
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    for (const auto& reply : replies) {
      if (writer->Write(reply)) continue;
      const std::lock_guard<std::recursive_mutex> lock(mutex_);
      ++s_.broken_off;
      break;
    }
    return Status::OK;
  }

 private:
  // Waits until `wanted` calls have arrived.
  bool WaitForCalls(int wanted) {
    std::unique_lock<std::mutex> lock(meeting_);
    ++met_;
    all_there_.notify_all();
    return all_there_.wait_for(lock, std::chrono::seconds(20), [&] { return met_ >= wanted; });
  }

  FakeState& s_;
  std::recursive_mutex& mutex_;
  std::mutex meeting_;
  std::condition_variable all_there_;
  int met_ = 0;
};

}  // namespace

struct FakeCoordinator::Parts {
  FakeState state;
  std::recursive_mutex mutex;
  FakeTraining training{&state, &mutex};
  FakePlanner planner{&state, &mutex};
  FakeReplay replay{&state, &mutex};
  FakeModels models{&state, &mutex};
  FakeCluster cluster{&state, &mutex};
  FakeInference inference{&state, &mutex};
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};

FakeCoordinator::FakeCoordinator() : parts_(std::make_unique<Parts>()) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &parts_->port);
  builder.RegisterService(&parts_->training);
  builder.RegisterService(&parts_->planner);
  builder.RegisterService(&parts_->replay);
  builder.RegisterService(&parts_->models);
  builder.RegisterService(&parts_->cluster);
  builder.RegisterService(&parts_->inference);
  parts_->server = builder.BuildAndStart();
}
FakeCoordinator::~FakeCoordinator() { parts_->server->Shutdown(); }
std::string FakeCoordinator::address() const { return absl::StrCat("127.0.0.1:", parts_->port); }
FakeCoordinator::Locked FakeCoordinator::state() { return {&parts_->state, &parts_->mutex}; }

}  // namespace espalier
