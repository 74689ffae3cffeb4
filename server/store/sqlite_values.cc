// SqliteStore: artifacts, served models and blobs.
#include "absl/strings/str_cat.h"
#include "server/store/parse_stored.h"
#include "server/store/sqlite_store.h"

namespace espalier {

absl::Status SqliteStore::PutArtifact(const ArtifactRecord& record,
                                      const IdempotencyRecord* idempotency_record) {
  return InTransaction([&]() -> absl::Status {
    mutex_.AssertHeld();
    absl::Status status = Sql("INSERT OR REPLACE INTO artifacts(name, body, folder) VALUES(?,?,?)")
                              .Bind(record.artifact.name())
                              .Bind(record.artifact.SerializeAsString())
                              .Bind(record.folder)
                              .Run();
    if (!status.ok() || idempotency_record == nullptr) return status;
    return InsertIdempotencyRecord(*idempotency_record);
  });
}

absl::Status SqliteStore::DeleteArtifact(const std::string& name,
                                         const IdempotencyRecord* idempotency_record) {
  return InTransaction([&]() -> absl::Status {
    mutex_.AssertHeld();
    absl::Status status = Sql("DELETE FROM artifacts WHERE name=?").Bind(name).Run();
    if (!status.ok() || idempotency_record == nullptr) return status;
    return InsertIdempotencyRecord(*idempotency_record);
  });
}

absl::StatusOr<std::vector<ArtifactRecord>> SqliteStore::Artifacts() const {
  absl::MutexLock lock(&mutex_);
  Statement& query = Sql("SELECT body, folder FROM artifacts ORDER BY name");
  ScopedStatementReset use(&query);
  std::vector<ArtifactRecord> records;
  while (true) {
    absl::StatusOr<bool> row = query.Step();
    if (!row.ok()) return row.status();
    if (!*row) return records;
    ArtifactRecord record;
    absl::Status status = ParseStored(query.Bytes(0), "artifact", &record.artifact);
    if (!status.ok()) return status;
    record.folder = query.Bytes(1);
    records.push_back(std::move(record));
  }
}

absl::Status SqliteStore::PutServed(const v1::ServeModelRequest& request,
                                    const IdempotencyRecord* idempotency_record) {
  return InTransaction([&]() -> absl::Status {
    mutex_.AssertHeld();
    absl::Status status = Sql("INSERT OR REPLACE INTO served(name, body) VALUES(?,?)")
                              .Bind(request.name())
                              .Bind(request.SerializeAsString())
                              .Run();
    if (!status.ok() || idempotency_record == nullptr) return status;
    return InsertIdempotencyRecord(*idempotency_record);
  });
}

absl::Status SqliteStore::DeleteServed(const std::string& name,
                                       const IdempotencyRecord* idempotency_record) {
  return InTransaction([&]() -> absl::Status {
    mutex_.AssertHeld();
    absl::Status status = Sql("DELETE FROM served WHERE name=?").Bind(name).Run();
    if (!status.ok() || idempotency_record == nullptr) return status;
    return InsertIdempotencyRecord(*idempotency_record);
  });
}

absl::StatusOr<std::vector<v1::ServeModelRequest>> SqliteStore::Served() const {
  absl::MutexLock lock(&mutex_);
  Statement& query = Sql("SELECT body FROM served ORDER BY name");
  ScopedStatementReset use(&query);
  std::vector<v1::ServeModelRequest> requests;
  while (true) {
    absl::StatusOr<bool> row = query.Step();
    if (!row.ok()) return row.status();
    if (!*row) return requests;
    v1::ServeModelRequest request;
    absl::Status status = ParseStored(query.Bytes(0), "served model", &request);
    if (!status.ok()) return status;
    requests.push_back(std::move(request));
  }
}

absl::Status SqliteStore::PutBlob(const std::string& name, const std::string& value) {
  return InTransaction([&]() -> absl::Status {
    mutex_.AssertHeld();
    return Sql("INSERT OR REPLACE INTO blobs(name, value) VALUES(?,?)")
        .Bind(name)
        .Bind(value)
        .Run();
  });
}

absl::Status SqliteStore::DeleteBlob(const std::string& name) {
  return InTransaction([&]() -> absl::Status {
    mutex_.AssertHeld();
    return Sql("DELETE FROM blobs WHERE name=?").Bind(name).Run();
  });
}

absl::StatusOr<std::string> SqliteStore::GetBlob(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  Statement& query = Sql("SELECT value FROM blobs WHERE name=?");
  ScopedStatementReset use(&query);
  absl::StatusOr<bool> row = query.Bind(name).Step();
  if (!row.ok()) return row.status();
  if (!*row) return absl::NotFoundError(absl::StrCat("nothing is stored as '", name, "'"));
  return query.Bytes(0);
}

}  // namespace espalier
