// A thin wrapper of SQLite: prepared statements, with errors as absl::Status.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;
struct sqlite3_stmt;

namespace espalier {

// A prepared statement, prepared on first use. Binding is positional, from 1.
class Statement {
 public:
  Statement(sqlite3* database, const std::string& sql);
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& Bind(int64_t value);
  Statement& Bind(const std::string& value);  // as a blob

  // Returns true if there is a row to read. After false or an error, the statement is reset for its
  // next use.
  absl::StatusOr<bool> Step();
  // Runs a statement that returns no rows.
  absl::Status Run();
  void Reset();

  int64_t Int(int column) const;
  std::string Bytes(int column) const;

 private:
  sqlite3* const database_;
  sqlite3_stmt* statement_ = nullptr;
  int prepared_ = 0;  // result code
  int next_ = 1;
};

// Resets a statement on scope exit, for queries whose rows are not read to the end.
class ScopedStatementReset {
 public:
  explicit ScopedStatementReset(Statement* statement) : statement_(statement) {}
  ~ScopedStatementReset() { statement_->Reset(); }

 private:
  Statement* const statement_;
};

// Returns the connection's last error: ResourceExhausted (full), DataLoss (damaged),
// FailedPrecondition (held by another process, or on a read-only volume), AlreadyExists
// (uniqueness), otherwise Unavailable.
absl::Status SqliteError(sqlite3* database, const std::string& doing);

}  // namespace espalier
