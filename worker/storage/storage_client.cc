#include "worker/storage/storage_client.h"

#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/net/grpc_status.h"
#include "worker/storage/object_upload.h"
#include "worker/storage/retries.h"

namespace espalier {
namespace {

// Of one stream, at a speed that nothing usable falls below.
constexpr absl::Duration kLeastTimeout = absl::Seconds(60);
constexpr double kLeastBytesPerSecond = 1 << 20;

void SetTimeout(grpc::ClientContext* context, int64_t bytes) {
  const absl::Duration timeout =
      kLeastTimeout + absl::Seconds(static_cast<double>(bytes) / kLeastBytesPerSecond);
  context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
}

absl::Status At(const std::string& name, const absl::Status& status) {
  return absl::Status(
      status.code(),
      absl::StrCat("'", name, "' of the coordinator: ", std::string(status.message())));
}

}  // namespace

absl::Status StorageClient::Read(const std::string& name, int64_t offset, int64_t bytes,
                                 void* out) const {
  char* next = static_cast<char*>(out);
  Retries retries(options_.patience, options_.cancellation);
  while (bytes > 0) {
    v1::ReadObjectRequest request;
    *request.mutable_caller() = options_.caller;
    request.set_name(name);
    request.set_offset(offset);
    request.set_bytes(bytes);
    grpc::ClientContext context;
    SetTimeout(&context, bytes);
    const Cancellation::Call call(options_.cancellation, [&context] { context.TryCancel(); });
    const auto reader = options_.stub->ReadObject(&context, request);
    v1::ReadObjectReply reply;
    while (reader->Read(&reply)) {
      const auto arrived = static_cast<int64_t>(reply.chunk().size());
      if (arrived > bytes) {
        context.TryCancel();
        return At(name, absl::DataLossError("more arrived than was asked for"));
      }
      std::memcpy(next, reply.chunk().data(), reply.chunk().size());
      next += arrived;
      offset += arrived;
      bytes -= arrived;
      retries.Progress();
    }
    absl::Status status = FromGrpc(reader->Finish(), "read");
    if (status.ok() && bytes > 0) {
      status = absl::DataLossError(absl::StrCat(bytes, " bytes less arrived than were asked for"));
    }
    if (!status.ok() && bytes > 0 && !retries.Again(status)) return At(name, status);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::ListObjectsReply> StorageClient::List(const std::string& folder,
                                                         bool block_hashes) const {
  v1::ListObjectsRequest request;
  *request.mutable_caller() = options_.caller;
  request.set_folder(folder);
  request.set_block_hashes(block_hashes);
  Retries retries(options_.patience, options_.cancellation);
  while (true) {
    grpc::ClientContext context;
    // The coordinator may have to hash a large model first.
    if (!block_hashes) SetTimeout(&context, 0);
    const Cancellation::Call call(options_.cancellation, [&context] { context.TryCancel(); });
    v1::ListObjectsReply reply;
    const absl::Status status =
        FromGrpc(options_.stub->ListObjects(&context, request, &reply), "list");
    if (status.ok()) return reply;
    if (!retries.Again(status)) return At(folder, status);
  }
}

absl::StatusOr<std::unique_ptr<CheckpointStore::Upload>> StorageClient::Put(
    const std::string& name) const {
  return ObjectUpload::Begin({.stub = options_.stub,
                              .caller = options_.caller,
                              .name = name,
                              .patience = options_.patience,
                              .cancellation = options_.cancellation});
}

}  // namespace espalier
