#include "server/fake_worker.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/net/api_keys.h"
#include "base/net/authenticated_channel.h"
#include "base/net/grpc_status.h"
#include "espalier/v1/cluster.grpc.pb.h"
#include "espalier/v1/worker.grpc.pb.h"
#include "ops/graph/graph_proto.h"
#include "storage/checkpoint.h"
#include "storage/data_dir_id.h"
#include "storage/folder_checkpoint_store.h"

namespace espalier {
namespace {

constexpr char kCallKey[] = "the-key-that-this-worker-demands";

class Zeros : public CheckpointSource {
 public:
  absl::Status Read(int, std::vector<char>* bytes) override {
    std::fill(bytes->begin(), bytes->end(), '\0');
    return absl::OkStatus();
  }
};

TensorSpec SpecOf(const v1::TensorSpec& message) {
  TensorSpec spec;
  spec.dtype = FromProto(message.dtype());
  spec.dims = Dims(message.dims().begin(), message.dims().end());
  spec.offset = Dims(message.offset().begin(), message.offset().end());
  spec.global = Dims(message.global().begin(), message.global().end());
  if (spec.offset.empty()) spec.offset.assign(spec.dims.size(), 0);
  if (spec.global.empty()) spec.global = spec.dims;
  return spec;
}

class FakeWorkerOverGrpc : public FakeWorker, public v1::Worker::Service {
 public:
  explicit FakeWorkerOverGrpc(const FakeWorkerOptions& options) : options_(options) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.SetMaxReceiveMessageSize(-1);
    builder.RegisterService(static_cast<v1::Worker::Service*>(this));
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
    heart_ = std::thread([this] { HeartbeatLoop(); });
  }
  ~FakeWorkerOverGrpc() override { Kill(); }

  void Kill() override {
    if (server_ == nullptr) return;
    dead_ = true;
    frozen_ = false;
    held_ = false;
    shards_held_ = false;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
    heart_.join();
  }
  void Freeze() override { frozen_ = true; }
  void Stall() override { held_ = true; }
  void Unstall() override { held_ = false; }
  void HoldShards() override { shards_held_ = true; }
  void ReleaseShards() override { shards_held_ = false; }
  int64_t first_step_of_last_run() const override { return first_step_; }
  int runs() const override { return runs_; }
  std::string refusal() const override {
    absl::MutexLock lock(&mutex_);
    return refusal_;
  }

  grpc::Status LoadProgram(grpc::ServerContext* context, const v1::LoadProgramRequest* request,
                           v1::LoadProgramReply* reply) override {
    if (!IsBearer(AuthorizationOf(*context), kCallKey)) {
      return ToGrpc(absl::UnauthenticatedError("this is not the coordinator"));
    }
    absl::MutexLock lock(&mutex_);
    // The coordinator may call before the worker has taken the answer to its Join.
    const uint64_t epoch = request->attempt().worker_epoch();
    const auto joined = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return epoch_ >= epoch; };
    mutex_.AwaitWithTimeout(absl::Condition(&joined), absl::Seconds(1));
    if (epoch_ != epoch) {
      return ToGrpc(absl::FailedPreconditionError("stale lease"));
    }
    if (!running_.empty() && running_ != request->attempt().job_id()) {
      return ToGrpc(absl::FailedPreconditionError(absl::StrCat("busy with job ", running_)));
    }
    steps_loaded_ = 0;
    if (!request->checkpoint_dir().empty()) {
      FolderCheckpointStore store(*files_, data_dir_ + "/checkpoints");
      const auto opened = CheckpointReader::Open(store, request->checkpoint_dir());
      if (!opened.ok()) return ToGrpc(opened.status());
      if (absl::Status s = (*opened)->VerifyAll(); !s.ok()) return ToGrpc(s);
      steps_loaded_ = (*opened)->manifest().steps_done;
    }
    steps_done_ = steps_loaded_;
    checkpoint_at_ = begun_ = 0;
    program_ = request->program();
    streams_ = request->dataset().format() == v1::Dataset::STREAM;
    attempt_ = request->attempt().attempt();
    reply->set_peak_bytes(program_.peak_bytes());
    return grpc::Status::OK;
  }

  grpc::Status Run(grpc::ServerContext* context, const v1::RunRequest* request,
                   grpc::ServerWriter<v1::RunEvent>* writer) override {
    ++runs_;
    first_step_ = request->first_step();
    v1::Program program;
    {
      absl::MutexLock lock(&mutex_);
      if (request->first_step() != steps_loaded_) {
        return ToGrpc(absl::DataLossError(absl::StrCat("the checkpoint is of step ", steps_loaded_,
                                                       ", the run's is ", request->first_step())));
      }
      program = program_;
      running_ = request->attempt().job_id();
    }
    const grpc::Status status = RunSteps(*context, *request, program, writer);
    absl::MutexLock lock(&mutex_);
    running_.clear();
    steps_loaded_ = request->last_step();
    return status;
  }

  grpc::Status Stop(grpc::ServerContext* context, const v1::StopRequest* request,
                    v1::StopReply*) override {
    while (frozen_ && !dead_) absl::SleepFor(absl::Milliseconds(2));
    const std::string& job = request->attempt().job_id();
    {
      absl::MutexLock lock(&mutex_);
      stopped_[job] = std::max(stopped_[job], request->attempt().attempt());
    }
    while (!dead_ && Running() == job) {
      if (context->IsCancelled()) return ToGrpc(absl::DeadlineExceededError("not ended yet"));
      absl::SleepFor(absl::Milliseconds(2));
    }
    return grpc::Status::OK;
  }

  grpc::Status CheckpointAt(grpc::ServerContext*, const v1::CheckpointAtRequest* request,
                            v1::CheckpointAtReply* reply) override {
    absl::MutexLock lock(&mutex_);
    if (++checkpoint_requests_ <= options_.unheard_checkpoint_requests) {
      return ToGrpc(absl::DeadlineExceededError("busy"));
    }
    if (request->attempt().attempt() != attempt_) {
      return ToGrpc(absl::FailedPreconditionError("the attempt is not loaded"));
    }
    if (request->steps_done() > steps_done_) checkpoint_at_ = request->steps_done();
    reply->set_steps_done(steps_done_);
    return grpc::Status::OK;
  }

  grpc::Status Measure(grpc::ServerContext*, const v1::MeasureRequest* request,
                       v1::MeasureReply* reply) override {
    for (int i = 0; i < request->programs_size(); ++i) reply->add_seconds(1e-5);
    return grpc::Status::OK;
  }

  grpc::Status Probe(grpc::ServerContext*, const v1::ProbeRequest* request,
                     v1::ProbeReply* reply) override {
    const auto id = ReadWholeFile(*files_, JoinPath(request->data_dir(), kDataDirIdFile), 1 << 10);
    reply->set_sees_data_dir(id.ok() && *id == request->data_dir_id());
    reply->set_may_write(reply->sees_data_dir());
    return grpc::Status::OK;
  }

 private:
  std::string DataDir() const {
    absl::MutexLock lock(&mutex_);
    return data_dir_;
  }
  std::string Running() const {
    absl::MutexLock lock(&mutex_);
    return running_;
  }
  bool IsStopped(const v1::Attempt& attempt) const {
    absl::MutexLock lock(&mutex_);
    const auto stopped = stopped_.find(attempt.job_id());
    return attempt.worker_epoch() != epoch_ ||
           (stopped != stopped_.end() && attempt.attempt() <= stopped->second);
  }

  grpc::Status RunSteps(const grpc::ServerContext& context, const v1::RunRequest& request,
                        const v1::Program& program, grpc::ServerWriter<v1::RunEvent>* writer) {
    v1::RunEvent event;
    *event.mutable_attempt() = request.attempt();
    const auto emit_shard = [&](bool waits) {
      if (begun_ == 0 || (shards_held_ && !waits)) return absl::OkStatus();
      while (shards_held_) absl::SleepFor(absl::Milliseconds(2));
      const absl::Status status = WriteShard(request, program, begun_.exchange(0), &event);
      if (status.ok()) writer->Write(event);
      return status;
    };
    const auto begin_shard = [&](int64_t done) {
      if (absl::Status s = emit_shard(/*waits=*/true); !s.ok()) return s;
      begun_ = done;
      return emit_shard(/*waits=*/false);
    };
    absl::Status shard = request.checkpoint_at_begin() ? begin_shard(request.first_step())
                                                       : emit_shard(/*waits=*/false);
    if (!shard.ok()) return ToGrpc(shard);
    for (int64_t step = request.first_step(); step < request.last_step(); ++step) {
      absl::SleepFor(options_.step);
      while ((frozen_ || held_) && !dead_) absl::SleepFor(absl::Milliseconds(2));
      if (dead_) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "killed");
      if (context.IsCancelled() || IsStopped(request.attempt())) {
        return grpc::Status(grpc::StatusCode::CANCELLED, "stopped");
      }
      if (step == options_.fail_at) return ToGrpc(options_.failure);
      if (streams_ && !HasExamples(request, step)) {
        return ToGrpc(absl::InternalError(absl::StrCat("no examples of step ", step)));
      }
      event.mutable_step()->set_step(step);
      event.mutable_step()->set_seconds(absl::ToDoubleSeconds(options_.step));
      (*event.mutable_step()->mutable_values())["loss"] = LossOf(step) / program.world_size();
      if (!writer->Write(event)) return grpc::Status(grpc::StatusCode::CANCELLED, "nobody listens");
      const int64_t done = step + 1;
      const int64_t every = request.checkpoint_every_steps();
      const bool at_end = done == request.last_step() && !request.goes_on();
      const bool asked_for = IsAskedFor(done);
      const bool due = at_end || (every > 0 && done % every == 0) || asked_for;
      shard = due ? begin_shard(done) : emit_shard(/*waits=*/false);
      if (!shard.ok()) return ToGrpc(shard);
    }
    if (request.evaluate_at_end()) {
      event.mutable_evaluation()->set_step(request.last_step());
      event.mutable_evaluation()->set_seconds(options_.evaluation_seconds);
      const double loss = options_.evaluation ? options_.evaluation(request.last_step()) : 1.0;
      (*event.mutable_evaluation()->mutable_values())["loss"] = loss / program.world_size();
      writer->Write(event);
    }
    if (shard = emit_shard(/*waits=*/!request.goes_on()); !shard.ok()) return ToGrpc(shard);
    event.set_measured_peak_bytes(1000 + program.rank());
    writer->Write(event);
    return grpc::Status::OK;
  }

  // Takes note that so many steps are done; whether CheckpointAt has named them.
  bool IsAskedFor(int64_t done) {
    absl::MutexLock lock(&mutex_);
    steps_done_ = done;
    return done == checkpoint_at_;
  }

  bool HasExamples(const v1::RunRequest& request, int64_t step) {
    for (const v1::StreamPart& part : request.stream()) {
      if (part.first_step() > step || part.end_step() <= step) continue;
      return files_->Open(JoinPath(DataDir(), part.path())).ok();
    }
    return false;
  }

  absl::Status WriteShard(const v1::RunRequest& request, const v1::Program& program, int64_t done,
                          v1::RunEvent* event) {
    std::vector<CheckpointEntry> entries;
    for (const v1::Buffer& buffer : program.buffers()) {
      if (buffer.kind() != v1::PARAMETER_SHARD && buffer.kind() != v1::OPTIMIZER_STATE) {
        continue;
      }
      if (buffer.saved_elsewhere()) continue;
      entries.push_back(
          {buffer.name(), SpecOf(buffer.spec()), buffer.kind() == v1::OPTIMIZER_STATE});
    }
    Zeros source;
    const std::string directory = absl::StrCat(request.checkpoint_root(), "/step-", done);
    FolderCheckpointStore store(*files_, DataDir() + "/checkpoints");
    absl::StatusOr<ManifestFile> file =
        WriteCheckpointShard(store, directory, program.rank(), entries, source);
    if (!file.ok()) return file.status();
    v1::CheckpointShard* shard = event->mutable_shard();
    shard->set_steps_done(done);
    shard->set_directory(directory);
    shard->set_file(file->name);
    shard->set_sha256(file->sha256);
    shard->set_bytes(file->bytes);
    shard->set_stall_seconds(options_.checkpoint_seconds);
    return absl::OkStatus();
  }

  // Joins and keeps the lease. If the coordinator refuses it or is gone, joins again once idle.
  void HeartbeatLoop() {
    auto stub = v1::Cluster::NewStub(
        grpc::CreateChannel(options_.coordinator, grpc::InsecureChannelCredentials()));
    v1::Lease lease;
    while (!dead_) {
      if (!frozen_) {
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
        context.set_wait_for_ready(true);
        if (lease.epoch() == 0 && !Running().empty()) {
          absl::MutexLock lock(&mutex_);
          epoch_ = 0;  // ends the running job
        } else if (lease.epoch() == 0) {
          v1::JoinRequest request;
          request.set_name(options_.name);
          request.set_address(options_.advertise.empty() ? address_ : options_.advertise);
          request.set_host("test");
          request.set_protocol_version(4);
          request.set_call_key(kCallKey);
          v1::Device* device = request.mutable_device();
          device->set_kind(v1::Device::CPU);
          device->set_model("fake");
          device->set_memory_bytes(options_.memory_bytes);
          device->set_matmul_flops(1e10);
          device->set_memory_bandwidth(1e10);
          device->set_op_overhead_seconds(1e-6);
          device->set_threads(1);
          v1::JoinReply reply;
          const grpc::Status joined = stub->Join(&context, request, &reply);
          {
            absl::MutexLock lock(&mutex_);
            refusal_ = joined.ok() ? "" : joined.error_message();
          }
          if (joined.ok()) {
            lease = reply.lease();
            absl::MutexLock lock(&mutex_);
            epoch_ = lease.epoch();
            data_dir_ = reply.data_dir();
            stopped_.clear();
          }
        } else {
          v1::HeartbeatRequest request;
          *request.mutable_lease() = lease;
          v1::HeartbeatReply reply;
          if (stub->Heartbeat(&context, request, &reply).error_code() ==
              grpc::StatusCode::FAILED_PRECONDITION) {
            lease.Clear();
          }
        }
      }
      absl::SleepFor(absl::Milliseconds(50));
    }
  }

  const FakeWorkerOptions options_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  std::thread heart_;
  std::atomic<bool> dead_{false};
  std::atomic<bool> frozen_{false};
  std::atomic<bool> held_{false};
  std::atomic<bool> shards_held_{false};
  std::atomic<int64_t> begun_{0};     // steps done, of a shard that is not written yet; 0: none
  std::atomic<bool> streams_{false};  // the loaded job's dataset is a STREAM
  std::atomic<int64_t> first_step_{-1};
  std::atomic<int> runs_{0};
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  mutable absl::Mutex mutex_;
  std::string data_dir_ ABSL_GUARDED_BY(mutex_);  // the coordinator's
  std::string running_ ABSL_GUARDED_BY(mutex_);   // its job
  std::string refusal_ ABSL_GUARDED_BY(mutex_);
  // job -> latest stopped attempt
  std::map<std::string, uint64_t> stopped_ ABSL_GUARDED_BY(mutex_);
  v1::Program program_ ABSL_GUARDED_BY(mutex_);
  uint64_t attempt_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t steps_loaded_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t steps_done_ ABSL_GUARDED_BY(mutex_) = 0;     // in this run
  int64_t checkpoint_at_ ABSL_GUARDED_BY(mutex_) = 0;  // as asked; 0: none
  int checkpoint_requests_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::unique_ptr<FakeWorker> FakeWorker::Start(const FakeWorkerOptions& options) {
  return std::make_unique<FakeWorkerOverGrpc>(options);
}

}  // namespace espalier
