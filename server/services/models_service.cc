#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/random_id.h"
#include "base/sha256.h"
#include "espalier/v1/models.grpc.pb.h"
#include "server/artifacts/artifact_names.h"
#include "server/artifacts/artifact_pages.h"
#include "server/artifacts/artifact_store.h"
#include "server/artifacts/quantize.h"
#include "server/services/call_interceptor.h"
#include "server/services/services.h"
#include "server/store/idempotency.h"

namespace espalier {
namespace {

using grpc::ServerContext;

constexpr char kUpload[] = "Models/Upload";
constexpr char kDelete[] = "Models/Delete";
constexpr char kQuantize[] = "Models/Quantize";
constexpr int64_t kDownloadChunk = 512 << 10;

// Valid while the caller is.
ArtifactRemoval Removal(const Caller& caller, bool force) {
  return {force, [&caller](const std::string& owner) { return caller.MayUse(owner); }};
}

absl::Status Gone() { return absl::CancelledError("the caller has gone"); }

class ModelsService : public v1::Models::Service {
 public:
  ModelsService(CallInterceptor* interceptor, const QuantizeTools& tools, JobStore* store,
                std::function<absl::Status(const v1::Artifact&)> check_servable)
      : interceptor_(*interceptor),
        check_servable_(std::move(check_servable)),
        tools_(tools),
        artifacts_(*tools.artifacts),
        store_(*store),
        idempotency_(store),
        files_(NewPosixFileSystem()) {}

  grpc::Status Upload(ServerContext* context, grpc::ServerReader<v1::UploadRequest>* reader,
                      v1::UploadReply* reply) override {
    return interceptor_.Handle(context, kUpload, nullptr, [&](const Caller& caller) {
      absl::Status status = Receive(context, caller, reader, reply);
      // Not part of the recorded reply: another release may serve it.
      if (status.ok() && reply->artifact().kind() == v1::Artifact::MODEL) {
        reply->set_not_servable(std::string(check_servable_(reply->artifact()).message()));
      }
      return status;
    });
  }

  grpc::Status List(ServerContext* context, const v1::ListArtifactsRequest* request,
                    v1::ListArtifactsReply* reply) override {
    return interceptor_.Handle(context, "Models/List", request, [&](const Caller& caller) {
      absl::Status listed = ListArtifacts(
          artifacts_, *request, [&](const std::string& owner) { return caller.MayUse(owner); },
          reply);
      if (!listed.ok()) return listed;
      reply->set_owner(caller.owner);
      if (caller.owner.empty()) return absl::OkStatus();
      // Nobody can guess it: a name that is taken would say what another owner has.
      if (!secret_.ok()) return secret_.status();
      reply->set_upload_salt(Sha256Hex(absl::StrCat(*secret_, " ", caller.owner)));
      return absl::OkStatus();
    });
  }

  grpc::Status Get(ServerContext* context, const v1::DownloadRequest* request,
                   grpc::ServerWriter<v1::DownloadReply>* writer) override {
    return interceptor_.Handle(context, "Models/Get", request,
                               [&](const Caller&) { return Send(context, *request, writer); });
  }

  grpc::Status Delete(ServerContext* context, const v1::DeleteArtifactRequest* request,
                      v1::DeleteArtifactReply* reply) override {
    return interceptor_.Handle(context, kDelete, request, [&](const Caller& caller) {
      const v1::DeleteArtifactRequest call = WithOwnersKey(*request, caller.owner);
      const ArtifactRemoval how = Removal(caller, call.force());
      return idempotency_.RunOnce(kDelete, call.idempotency_key(), call, reply, [&] {
        if (call.idempotency_key().empty()) return artifacts_.Delete(call.name(), nullptr, how);
        const IdempotencyRecord idempotency_record =
            MakeIdempotencyRecord(kDelete, call.idempotency_key(), call, *reply);
        return artifacts_.Delete(call.name(), &idempotency_record, how);
      });
    });
  }

  grpc::Status Quantize(ServerContext* context, const v1::QuantizeRequest* request,
                        grpc::ServerWriter<v1::QuantizeReply>* writer) override {
    return interceptor_.Handle(context, kQuantize, request, [&](const Caller& caller) {
      return Pack(context, caller, WithOwnersKey(*request, caller.owner), writer);
    });
  }

 private:
  // Returns true if the call was already made under its key; `reply` is then its answer.
  absl::StatusOr<bool> FindRecordedReply(const std::string& method, const std::string& key,
                                         const google::protobuf::MessageLite& request,
                                         google::protobuf::MessageLite* reply) {
    if (key.empty()) return false;
    if (absl::Status status = CheckIdempotencyKey(key); !status.ok()) return status;
    const IdempotencyRecord probe = MakeIdempotencyRecord(method, key, request, *reply);
    absl::StatusOr<std::optional<std::string>> known =
        store_.FindReply(method, key, probe.request_hash);
    if (!known.ok()) return known.status();
    if (!known->has_value()) return false;
    if (!reply->ParseFromString(**known)) {
      return absl::DataLossError("job store: a recorded reply does not parse");
    }
    return true;
  }

  absl::Status Pack(ServerContext* context, const Caller& caller,
                    const v1::QuantizeRequest& request,
                    grpc::ServerWriter<v1::QuantizeReply>* writer) {
    v1::QuantizeReply reply;
    const std::string& key = request.idempotency_key();
    absl::StatusOr<bool> recalled = FindRecordedReply(kQuantize, key, request, &reply);
    if (!recalled.ok()) return recalled.status();
    if (!*recalled) {
      const auto progress = [&](int64_t done, int64_t total) {
        if (context->IsCancelled()) return Gone();
        v1::QuantizeReply part;
        part.mutable_progress()->set_bytes_done(done);
        part.mutable_progress()->set_bytes_total(total);
        return Write(context, part, writer) ? absl::OkStatus() : Gone();
      };
      ArtifactUpload::IdempotencyRecordFactory remember;
      if (!key.empty()) {
        remember = [&](const v1::Artifact& artifact) {
          v1::QuantizeReply answer;
          *answer.mutable_artifact() = artifact;
          return MakeIdempotencyRecord(kQuantize, key, request, answer);
        };
      }
      absl::StatusOr<v1::Artifact> artifact =
          QuantizeArtifact(request, caller.owner, tools_, progress, remember,
                           [&](const std::string& owner) { return caller.MayUse(owner); });
      if (!artifact.ok()) return artifact.status();
      *reply.mutable_artifact() = *std::move(artifact);
    }
    return Write(context, reply, writer) ? absl::OkStatus() : Gone();
  }

  bool Read(ServerContext* context, grpc::ServerReader<v1::UploadRequest>* reader,
            v1::UploadRequest* part) {
    const StreamIdleTimeout::Wait wait(interceptor_.idle(), context);
    return reader->Read(part);
  }
  template <typename Reply>
  bool Write(ServerContext* context, const Reply& part, grpc::ServerWriter<Reply>* writer) {
    const StreamIdleTimeout::Wait wait(interceptor_.idle(), context);
    return writer->Write(part);
  }

  // In the idempotency record, the header stands for the request and the artifact, which has the
  // hash of its files, for the chunks. Whether an upload repeats an earlier one is known at its
  // end.
  absl::Status Receive(ServerContext* context, const Caller& caller,
                       grpc::ServerReader<v1::UploadRequest>* reader, v1::UploadReply* reply) {
    v1::UploadRequest part;
    if (!Read(context, reader, &part) || !part.has_header()) {
      return absl::InvalidArgumentError("the first message of an upload must be its header");
    }
    const v1::UploadHeader header = WithOwnersKey(part.header(), caller.owner);
    if (absl::Status name = CheckClientArtifactName(header.name()); !name.ok()) return name;
    absl::Status allowed = interceptor_.access().CheckRequest(kUpload, caller, header);
    if (!allowed.ok()) return allowed;
    const std::string& key = header.idempotency_key();
    const absl::StatusOr<bool> recalled = FindRecordedReply(kUpload, key, header, reply);
    if (!recalled.ok()) return recalled.status();
    absl::StatusOr<std::unique_ptr<ArtifactUpload>> upload;
    if (*recalled) {
      upload = artifacts_.BeginRetry(header.name());
    } else {
      upload = artifacts_.Begin({header.name(),
                                 header.kind(),
                                 {header.metadata().begin(), header.metadata().end()},
                                 caller.owner},
                                header.replace(), Removal(caller, header.force()));
    }
    if (!upload.ok()) return upload.status();
    int whole = 0;  // files whose checksums matched
    while (Read(context, reader, &part)) {
      absl::Status status;
      switch (part.part_case()) {
        case v1::UploadRequest::kFile:
          status = (*upload)->StartFile(part.file().name());
          break;
        case v1::UploadRequest::kChunk:
          status = (*upload)->Append(part.chunk());
          break;
        case v1::UploadRequest::kSha256:
          status = (*upload)->CheckSha256(part.sha256());
          ++whole;
          break;
        case v1::UploadRequest::kHeader:
          status = absl::InvalidArgumentError("an upload has one header");
          break;
        case v1::UploadRequest::PART_NOT_SET:
          status = absl::InvalidArgumentError("an empty message within an upload");
          break;
      }
      if (!status.ok()) return status;
    }
    // A broken call and an unreadable message look like the end of a complete one. A further read
    // after the end returns nothing, and by then IsCancelled is reliable.
    const bool more = Read(context, reader, &part);
    if (context->IsCancelled()) {
      return absl::CancelledError("the upload broke off; nothing of it is kept");
    }
    if (more) {
      return absl::InvalidArgumentError(
          "a message of the upload could not be read (are all file names UTF-8?); nothing of it is "
          "kept");
    }
    if (header.files() != 0 && header.files() != whole) {
      return absl::InvalidArgumentError(
          absl::StrCat("the upload broke off, or its field 'files' is wrong: ", whole, " of ",
                       header.files(), " files came with their sha256; nothing of it is kept"));
    }
    if (*recalled) {
      const absl::Status same = (*upload)->CheckMatches(reply->artifact());
      if (same.ok()) return same;
      return absl::InvalidArgumentError(absl::StrCat(
          "idempotency_key '", CallersKey(key), "' was used before for ", kUpload,
          " with another request: ", same.message(), "; use a new key for a new request"));
    }
    ArtifactUpload::IdempotencyRecordFactory remember;
    if (!key.empty()) {
      remember = [&](const v1::Artifact& artifact) {
        v1::UploadReply answer;
        *answer.mutable_artifact() = artifact;
        return MakeIdempotencyRecord(kUpload, key, header, answer);
      };
    }
    const auto go_on = [context] { return context->IsCancelled() ? Gone() : absl::OkStatus(); };
    absl::StatusOr<v1::Artifact> artifact = (*upload)->Commit(remember, go_on);
    if (!artifact.ok()) return artifact.status();
    *reply->mutable_artifact() = *std::move(artifact);
    return absl::OkStatus();
  }

  absl::Status Send(ServerContext* context, const v1::DownloadRequest& request,
                    grpc::ServerWriter<v1::DownloadReply>* writer) {
    absl::StatusOr<v1::Artifact> artifact = artifacts_.Find(request.name());
    if (!artifact.ok()) return artifact.status();
    const absl::StatusOr<ArtifactFolder> folder = artifacts_.Pin(request.name());
    if (!folder.ok()) return folder.status();
    const auto& names = artifact->files();
    if (!request.file().empty() &&
        std::find(names.begin(), names.end(), request.file()) == names.end()) {
      return absl::NotFoundError(absl::StrCat("artifact '", request.name(), "' has no file '",
                                              request.file().substr(0, 300), "'"));
    }
    v1::DownloadReply reply;
    *reply.mutable_artifact() = *artifact;
    if (!Write(context, reply, writer)) return Gone();
    for (const std::string& name : names) {
      if (!request.file().empty() && name != request.file()) continue;
      reply.Clear();
      reply.mutable_file()->set_name(name);
      if (!Write(context, reply, writer)) return Gone();
      absl::StatusOr<std::unique_ptr<ReadableFile>> file =
          files_->Open(JoinPath(folder->path(), name));
      if (!file.ok()) return file.status();
      for (int64_t at = 0; at < (*file)->size();) {
        const int64_t bytes = std::min(kDownloadChunk, (*file)->size() - at);
        std::string* chunk = reply.mutable_chunk();
        chunk->resize(static_cast<size_t>(bytes));
        absl::Status status = (*file)->Read(at, bytes, chunk->data());
        if (!status.ok()) return status;
        if (!Write(context, reply, writer)) return Gone();
        at += bytes;
      }
    }
    return absl::OkStatus();
  }

  CallInterceptor& interceptor_;
  const std::function<absl::Status(const v1::Artifact&)> check_servable_;
  const QuantizeTools tools_;
  ArtifactStore& artifacts_;
  JobStore& store_;
  Idempotency idempotency_;
  const std::unique_ptr<FileSystem> files_;
  const absl::StatusOr<std::string> secret_ = RandomId();  // of upload_salt
};

}  // namespace

std::unique_ptr<grpc::Service> MakeModelsService(
    CallInterceptor* interceptor, const QuantizeTools& tools, JobStore* store,
    std::function<absl::Status(const v1::Artifact&)> check_servable) {
  return std::make_unique<ModelsService>(interceptor, tools, store, std::move(check_servable));
}

}  // namespace espalier
