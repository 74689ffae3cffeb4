#include "server/storage/storage_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/storage.grpc.pb.h"
#include "server/services/call_interceptor.h"
#include "server/storage/block_hashes.h"
#include "server/storage/object_access.h"
#include "server/storage/uploads.h"
#include "storage/data_folder_names.h"

namespace espalier {
namespace {

using grpc::ServerContext;

constexpr char kPutObject[] = "Storage/PutObject";
constexpr int64_t kChunkBytes = 1 << 20;
constexpr absl::Duration kLookAgain = absl::Milliseconds(200);

// Streams that use the disk at once.
class Turns {
 public:
  explicit Turns(int most) : free_(most) {}

  // A turn, given back by the destructor.
  class Turn {
   public:
    Turn(Turns* turns, ServerContext* context) : turns_(*turns) {
      absl::MutexLock lock(&turns_.mutex_);
      while (turns_.free_ == 0 && !context->IsCancelled()) {
        turns_.changed_.WaitWithTimeout(&turns_.mutex_, kLookAgain);
      }
      taken_ = turns_.free_ > 0;
      if (taken_) --turns_.free_;
    }
    ~Turn() {
      absl::MutexLock lock(&turns_.mutex_);
      if (taken_) ++turns_.free_;
      turns_.changed_.Signal();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    bool taken() const { return taken_; }

   private:
    Turns& turns_;
    bool taken_ = false;
  };

 private:
  absl::Mutex mutex_;
  absl::CondVar changed_;
  int free_ ABSL_GUARDED_BY(mutex_);
};

absl::Status Gone() { return absl::CancelledError("the caller has gone"); }

class StorageService : public v1::Storage::Service {
 public:
  explicit StorageService(const StorageServiceOptions& options)
      : interceptor_(*options.interceptor),
        store_(*options.data_folder),
        access_(options.workers, options.rendezvous),
        uploads_(*options.uploads),
        hashes_(options.data_folder),
        turns_(options.max_streams) {}

  grpc::Status PutObject(
      ServerContext* context,
      grpc::ServerReaderWriter<v1::PutObjectReply, v1::PutObjectRequest>* stream) override {
    return interceptor_.Handle(
        context, kPutObject, nullptr,
        [&](const Caller& caller) { return Put(context, caller, stream); }, CallKind::kShort);
  }

  grpc::Status ReadObject(ServerContext* context, const v1::ReadObjectRequest* request,
                          grpc::ServerWriter<v1::ReadObjectReply>* writer) override {
    return interceptor_.Handle(
        context, "Storage/ReadObject", request,
        [&](const Caller&) { return Read(context, *request, writer); }, CallKind::kShort);
  }

  grpc::Status ListObjects(ServerContext* context, const v1::ListObjectsRequest* request,
                           v1::ListObjectsReply* reply) override {
    return interceptor_.Handle(
        context, "Storage/ListObjects", request,
        [&](const Caller&) { return List(*request, reply); }, CallKind::kShort);
  }

 private:
  using PutStream = grpc::ServerReaderWriter<v1::PutObjectReply, v1::PutObjectRequest>;

  absl::Status Put(ServerContext* context, const Caller& caller, PutStream* stream) {
    v1::PutObjectRequest message;
    if (!Next(context, stream, &message)) return Gone();
    if (!message.has_begin()) return absl::InvalidArgumentError("the first message has no begin");
    absl::Status allowed = interceptor_.access().CheckRequest(kPutObject, caller, message);
    if (!allowed.ok()) return allowed;
    const v1::PutObjectRequest::Begin begin = message.begin();
    if (absl::Status s = access_.CheckWrite(begin.caller(), begin.name()); !s.ok()) return s;
    // Before it waits, so that the upload is kept meanwhile.
    absl::StatusOr<Uploads::Stream> upload = uploads_.Begin(begin.name(), begin.upload());
    if (!upload.ok()) return upload.status();
    const Turns::Turn turn(&turns_, context);
    if (!turn.taken()) return Gone();
    if (absl::Status s = Answer(context, upload->received(), false, stream); !s.ok()) return s;
    while (Next(context, stream, &message)) {
      // The attempt may have ended meanwhile, or the worker have lost its lease.
      if (absl::Status s = access_.CheckCaller(begin.caller()); !s.ok()) return s;
      if (message.has_commit()) {
        const absl::Status committed =
            upload->Commit(message.commit().bytes(), message.commit().sha256());
        if (!committed.ok()) return committed;
        return Answer(context, message.commit().bytes(), true, stream);
      }
      if (!message.has_chunk() ||
          static_cast<int64_t>(message.chunk().data().size()) > kChunkBytes) {
        return absl::InvalidArgumentError(absl::StrCat(
            "after begin, accepted are chunks of at most ", kChunkBytes, " bytes, then commit"));
      }
      absl::Status status = upload->Append(message.chunk().offset(), message.chunk().data());
      if (status.ok()) status = Answer(context, upload->received(), false, stream);
      if (!status.ok()) return status;
    }
    return Gone();
  }

  bool Next(ServerContext* context, PutStream* stream, v1::PutObjectRequest* message) {
    const StreamIdleTimeout::Wait wait(interceptor_.idle(), context);
    return stream->Read(message);
  }

  absl::Status Answer(ServerContext* context, int64_t received, bool durable, PutStream* stream) {
    v1::PutObjectReply reply;
    reply.set_received(received);
    reply.set_durable(durable);
    const StreamIdleTimeout::Wait wait(interceptor_.idle(), context);
    return stream->Write(reply) ? absl::OkStatus() : Gone();
  }

  absl::Status Read(ServerContext* context, const v1::ReadObjectRequest& request,
                    grpc::ServerWriter<v1::ReadObjectReply>* writer) {
    if (absl::Status s = access_.CheckRead(request.caller(), request.name()); !s.ok()) return s;
    if (request.offset() < 0 || request.bytes() < 0) {
      return absl::InvalidArgumentError("offset and bytes must not be negative");
    }
    const Turns::Turn turn(&turns_, context);
    if (!turn.taken()) return Gone();
    const absl::StatusOr<std::unique_ptr<ReadableFile>> file = store_.Open(request.name());
    if (!file.ok()) return file.status();
    if (request.offset() > (*file)->size() ||
        request.bytes() > (*file)->size() - request.offset()) {
      return absl::OutOfRangeError(
          absl::StrCat("'", request.name(), "' has ", (*file)->size(), " bytes"));
    }
    v1::ReadObjectReply reply;
    for (int64_t done = 0; done < request.bytes();) {
      const int64_t bytes = std::min(kChunkBytes, request.bytes() - done);
      reply.mutable_chunk()->resize(static_cast<size_t>(bytes));
      absl::Status status =
          (*file)->Read(request.offset() + done, bytes, reply.mutable_chunk()->data());
      if (!status.ok()) return status;
      const StreamIdleTimeout::Wait wait(interceptor_.idle(), context);
      if (!writer->Write(reply)) return Gone();
      done += bytes;
    }
    return absl::OkStatus();
  }

  absl::Status List(const v1::ListObjectsRequest& request, v1::ListObjectsReply* reply) {
    if (absl::Status s = access_.CheckRead(request.caller(), request.folder()); !s.ok()) return s;
    const bool hashed = request.block_hashes();
    if (hashed && !absl::StartsWith(request.folder(), absl::StrCat(kArtifactsFolder, "/"))) {
      return absl::InvalidArgumentError("block_hashes: only artifacts have them");
    }
    const absl::StatusOr<std::vector<ObjectReader::Object>> objects = store_.List(request.folder());
    if (!objects.ok()) return objects.status();
    if (hashed) reply->set_block_bytes(kBlockBytes);
    for (const ObjectReader::Object& object : *objects) {
      v1::ListObjectsReply::Object* listed = reply->add_objects();
      listed->set_name(object.name);
      listed->set_bytes(object.bytes);
      if (!hashed) continue;
      absl::StatusOr<std::vector<std::string>> blocks = hashes_.Of(object.name);
      if (!blocks.ok()) return blocks.status();
      for (std::string& block : *blocks) listed->add_block_sha256(std::move(block));
    }
    return absl::OkStatus();
  }

  CallInterceptor& interceptor_;
  FolderCheckpointStore& store_;
  const ObjectAccess access_;
  Uploads& uploads_;
  BlockHashes hashes_;
  Turns turns_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewStorageService(const StorageServiceOptions& options) {
  return std::make_unique<StorageService>(options);
}

}  // namespace espalier
