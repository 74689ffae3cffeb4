#include "server/store/sqlite.h"

#include <sqlite3.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// Returns the errno of the last failed access to the write-ahead log. sqlite3_system_errno does not
// report it for COMMIT.
int LogErrno(sqlite3* database) {
  sqlite3_file* log = nullptr;
  int error = 0;
  sqlite3_file_control(database, "main", SQLITE_FCNTL_JOURNAL_POINTER, &log);
  if (log != nullptr && log->pMethods != nullptr) {
    log->pMethods->xFileControl(log, SQLITE_FCNTL_LAST_ERRNO, &error);
  }
  return error;
}

// Returns true if a write failed because the volume is read-only, including files that were
// writable when opened: a volume turns read-only after disk errors.
bool IsReadOnly(sqlite3* database, int code) {
  return code == SQLITE_READONLY || (code == SQLITE_IOERR && LogErrno(database) == EROFS);
}

}  // namespace

absl::Status SqliteError(sqlite3* database, const std::string& doing) {
  const int code = sqlite3_errcode(database) & 0xff;  // primary result code
  const std::string text = absl::StrCat(doing, ": ", sqlite3_errmsg(database));
  if (IsReadOnly(database, code)) {
    return absl::FailedPreconditionError(
        absl::StrCat(text, "; is the volume of ", sqlite3_db_filename(database, "main"),
                     " mounted read-only? Make it writable, and try again"));
  }
  switch (code) {
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(
          absl::StrCat(text, "; free space in the data directory and try again"));
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(absl::StrCat(text, "; restore the file from a backup"));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::FailedPreconditionError(
          absl::StrCat(text, "; another espalierd uses this data directory"));
    case SQLITE_CONSTRAINT:
      return absl::AlreadyExistsError(text);
    default:
      return absl::UnavailableError(text);
  }
}

Statement::Statement(sqlite3* database, const std::string& sql) : database_(database) {
  prepared_ = sqlite3_prepare_v3(database, sql.c_str(), static_cast<int>(sql.size()),
                                 SQLITE_PREPARE_PERSISTENT, &statement_, nullptr);
}

Statement::~Statement() { sqlite3_finalize(statement_); }

Statement& Statement::Bind(int64_t value) {
  if (statement_ != nullptr) sqlite3_bind_int64(statement_, next_++, value);
  return *this;
}

Statement& Statement::Bind(const std::string& value) {
  if (statement_ != nullptr) {
    sqlite3_bind_blob64(statement_, next_++, value.data() == nullptr ? "" : value.data(),
                        value.size(), SQLITE_TRANSIENT);
  }
  return *this;
}

absl::StatusOr<bool> Statement::Step() {
  if (prepared_ != SQLITE_OK) return SqliteError(database_, "job store");
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  absl::Status status =
      code == SQLITE_DONE ? absl::OkStatus() : SqliteError(database_, "job store");
  Reset();
  if (!status.ok()) return status;
  return false;
}

absl::Status Statement::Run() {
  absl::StatusOr<bool> row = Step();
  if (row.ok() && *row) Reset();
  return row.status();
}

void Statement::Reset() {
  if (statement_ != nullptr) {
    sqlite3_reset(statement_);
    sqlite3_clear_bindings(statement_);
  }
  next_ = 1;
}

int64_t Statement::Int(int column) const { return sqlite3_column_int64(statement_, column); }

std::string Statement::Bytes(int column) const {
  const void* data = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), size);
}

}  // namespace espalier
