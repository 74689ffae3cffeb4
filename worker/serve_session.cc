#include "worker/serve_session.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// Adds a message of a command to those before it.
absl::Status Merge(v1::RankCommand message, v1::RankCommand* whole) {
  if (whole->number() != 0 && whole->number() != message.number()) {
    return absl::InvalidArgumentError(
        absl::StrCat("command ", message.number(), " begins within command ", whole->number()));
  }
  google::protobuf::RepeatedPtrField<v1::TensorPart> columns = std::move(*whole->mutable_columns());
  google::protobuf::RepeatedPtrField<v1::BufferPart> writes = std::move(*whole->mutable_writes());
  for (v1::TensorPart& part : *message.mutable_columns()) {
    if (part.offset() == 0) {
      *columns.Add() = std::move(part);
    } else if (columns.empty() || columns[columns.size() - 1].name() != part.name()) {
      return absl::InvalidArgumentError(
          absl::StrCat("column '", part.name(), "' begins at byte ", part.offset()));
    } else {
      columns[columns.size() - 1].mutable_data()->append(part.data());
    }
  }
  for (v1::BufferPart& part : *message.mutable_writes()) *writes.Add() = std::move(part);
  *whole = std::move(message);
  *whole->mutable_columns() = std::move(columns);
  *whole->mutable_writes() = std::move(writes);
  return absl::OkStatus();
}

}  // namespace

absl::Status ServeSession(SessionJob& job, SessionStream* stream) {
  if (absl::Status s = job.Connect(); !s.ok()) return s;
  if (!stream->Write(v1::RankResult())) return absl::OkStatus();
  v1::RankCommand message, command;
  while (stream->Read(&message)) {
    const bool more = message.more();
    if (absl::Status s = Merge(std::move(message), &command); !s.ok()) return s;
    message.Clear();
    if (more) continue;
    absl::Status s =
        job.Run(std::exchange(command, v1::RankCommand()), [&](const v1::RankResult& result) {
          return stream->Write(result) ? absl::OkStatus()
                                       : absl::CancelledError("the coordinator is gone");
        });
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace espalier
