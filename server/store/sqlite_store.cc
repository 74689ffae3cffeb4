#include "server/store/sqlite_store.h"

#include <sqlite3.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/store/idempotency.h"
#include "server/store/parse_stored.h"

namespace espalier {
namespace {

constexpr int64_t kApplicationId = 0x45535031;  // "ESP1"
constexpr int64_t kSchemaVersion = 4;

// jobs.number is the order of creation. log holds reports (step >= 0), validations (the one after
// step s has -1 - s) and messages (step null; their text, and level and unix_ms as in
// JobMessage); AUTOINCREMENT keeps sequence numbers from being reused after reports are dropped.
constexpr char kSchema[] = R"sql(
CREATE TABLE jobs(number INTEGER PRIMARY KEY AUTOINCREMENT, id BLOB NOT NULL UNIQUE,
  job BLOB NOT NULL, spec BLOB NOT NULL, plan BLOB NOT NULL DEFAULT x'',
  checkpoint_dir BLOB NOT NULL, attempts_without_progress INTEGER NOT NULL, failures BLOB NOT NULL);
CREATE TABLE log(sequence INTEGER PRIMARY KEY AUTOINCREMENT, job BLOB NOT NULL, step INTEGER,
  body BLOB NOT NULL, level INTEGER NOT NULL DEFAULT 0, unix_ms INTEGER NOT NULL DEFAULT 0);
CREATE UNIQUE INDEX log_step ON log(job, step) WHERE step IS NOT NULL;
CREATE INDEX log_order ON log(job, sequence);
CREATE TABLE idempotency_record(method BLOB NOT NULL, key BLOB NOT NULL PRIMARY KEY, hash BLOB NOT NULL,
  reply BLOB NOT NULL, at INTEGER NOT NULL DEFAULT (CAST(strftime('%s','now') AS INTEGER)));
CREATE TABLE epoch(only_row INTEGER PRIMARY KEY CHECK(only_row = 1), value INTEGER NOT NULL);
INSERT INTO epoch VALUES(1, 0);
CREATE TABLE artifacts(name BLOB NOT NULL PRIMARY KEY, body BLOB NOT NULL, folder BLOB NOT NULL);
CREATE TABLE served(name BLOB NOT NULL PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE blobs(name BLOB NOT NULL PRIMARY KEY, value BLOB NOT NULL);
)sql";

// Makes a store of version 2 one of version 3: its messages become INFO; and one of version 3 one
// of version 4: its messages have no time.
constexpr char kFromVersion2[] = "ALTER TABLE log ADD COLUMN level INTEGER NOT NULL DEFAULT 0;";
constexpr char kFromVersion3[] = "ALTER TABLE log ADD COLUMN unix_ms INTEGER NOT NULL DEFAULT 0;";

// log.step of the validation after this step.
int64_t ValidationKey(int64_t step) { return -1 - step; }

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::Open(const std::string& path,
                                                               Options options) {
  sqlite3* database = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &database,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  auto store = std::unique_ptr<SqliteStore>(new SqliteStore(database));
  if (code != SQLITE_OK) return SqliteError(database, absl::StrCat("opening ", path));
  absl::MutexLock lock(&store->mutex_);
  absl::Status status = store->Prepare(path, options);
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  }
  return store;
}

SqliteStore::~SqliteStore() {
  absl::MutexLock lock(&mutex_);
  statements_.clear();
  sqlite3_close(database_);
}

absl::Status SqliteStore::Prepare(const std::string& path, const Options& options) {
  sqlite3_extended_result_codes(database_, 1);
  sqlite3_busy_timeout(database_, 200);
  // Reported here, as later it would surface as "disk I/O error".
  if (sqlite3_db_readonly(database_, "main") == 1) {
    return absl::FailedPreconditionError(
        "the job store is read-only here; make its file and folder writable, or name another "
        "folder with --data-dir");
  }
  // The log is moved into the file by Checkpoint; in the middle of a write only when it has grown
  // to 40 MB, because that takes long.
  for (const char* pragma :
       {"PRAGMA locking_mode=EXCLUSIVE", "PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL",
        "PRAGMA wal_autocheckpoint=10000", "BEGIN EXCLUSIVE", "COMMIT"}) {
    absl::Status status = Execute(pragma);
    if (!status.ok()) return status;
  }
  auto number = [&](const std::string& sql) -> absl::StatusOr<int64_t> {
    Statement statement(database_, sql);
    absl::StatusOr<bool> row = statement.Step();
    if (!row.ok()) return row.status();
    return *row ? statement.Int(0) : 0;
  };
  Statement check(database_, "PRAGMA quick_check(1)");
  absl::StatusOr<bool> row = check.Step();
  if (!row.ok()) return row.status();
  if (*row && check.Bytes(0) != "ok") {
    return absl::DataLossError(absl::StrCat("the job store is damaged: ", check.Bytes(0),
                                            "; restore it from a backup, or move it away to start "
                                            "with an empty one"));
  }
  check.Reset();
  absl::StatusOr<int64_t> tables = number("SELECT count(*) FROM sqlite_master");
  if (!tables.ok()) return tables.status();
  absl::StatusOr<int64_t> application = number("PRAGMA application_id");
  if (!application.ok()) return application.status();
  absl::StatusOr<int64_t> version = number("PRAGMA user_version");
  if (!version.ok()) return version.status();
  if (*tables == 0) {
    absl::Status status =
        Execute(absl::StrCat("BEGIN;", kSchema, "PRAGMA application_id=", kApplicationId,
                             ";PRAGMA user_version=", kSchemaVersion, ";COMMIT"));
    if (!status.ok()) return status;
  } else if (*application != kApplicationId) {
    return absl::DataLossError("this is not a job store of Espalier");
  } else if (*version == 2 || *version == 3) {
    // If it fails, the connection is closed, which undoes it.
    absl::Status status =
        Execute(absl::StrCat("BEGIN IMMEDIATE;", *version == 2 ? kFromVersion2 : "", kFromVersion3,
                             "PRAGMA user_version=", kSchemaVersion, ";COMMIT"));
    if (!status.ok()) return status;
  } else if (*version != kSchemaVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the job store has schema version ", *version, ", this espalierd reads 2 to ",
                     kSchemaVersion, "; start the espalierd that wrote it"));
  }
  if (options.max_pages > 0) {
    absl::StatusOr<int64_t> limit =
        number(absl::StrCat("PRAGMA max_page_count=", options.max_pages));
    if (!limit.ok()) return limit.status();
  }
  absl::Status status = Execute(absl::StrCat("DELETE FROM idempotency_record WHERE at < ",
                                             absl::ToUnixSeconds(absl::Now() - kRepliesKept)));
  return status.ok() ? LoadKeys() : status;
}

absl::Status SqliteStore::LoadKeys() {
  Statement keys(database_, "SELECT key FROM idempotency_record");
  absl::flat_hash_set<size_t> found;
  while (true) {
    absl::StatusOr<bool> row = keys.Step();
    if (!row.ok()) return row.status();
    if (!*row) break;
    found.insert(std::hash<std::string>()(keys.Bytes(0)));
  }
  absl::MutexLock lock(&keys_mutex_);
  keys_ = std::move(found);
  return absl::OkStatus();
}

absl::Status SqliteStore::ForgetRepliesBefore(absl::Time time) {
  const int64_t oldest = absl::ToUnixSeconds(time);
  absl::Status status = InTransaction([&]() -> absl::Status {
    mutex_.AssertHeld();
    return Sql("DELETE FROM idempotency_record WHERE at < ?").Bind(oldest).Run();
  });
  if (!status.ok()) return status;
  // Once they are surely gone. No write is in its transaction while this has the connection.
  absl::MutexLock lock(&mutex_);
  return LoadKeys();
}

absl::Status SqliteStore::Execute(const std::string& sql) const {
  if (sqlite3_exec(database_, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK) {
    return absl::OkStatus();
  }
  return SqliteError(database_, "job store");
}

Statement& SqliteStore::Sql(const std::string& sql) const {
  std::unique_ptr<Statement>& statement = statements_[sql];
  if (statement == nullptr) statement = std::make_unique<Statement>(database_, sql);
  statement->Reset();
  return *statement;
}

absl::Status SqliteStore::InsertIdempotencyRecord(const IdempotencyRecord& idempotency_record) {
  {
    absl::MutexLock lock(&keys_mutex_);
    keys_.insert(std::hash<std::string>()(idempotency_record.key));
  }
  return Sql("INSERT INTO idempotency_record(method, key, hash, reply) VALUES(?,?,?,?)")
      .Bind(idempotency_record.method)
      .Bind(idempotency_record.key)
      .Bind(idempotency_record.request_hash)
      .Bind(idempotency_record.reply)
      .Run();
}

absl::Status SqliteStore::Write(const std::string& job_id, const JobWrite& write) {
  return InTransaction([&]() -> absl::Status {
    mutex_.AssertHeld();
    return WriteJob(job_id, write);
  });
}

std::vector<absl::Status> SqliteStore::WriteAll(const std::vector<NamedWrite>& writes) {
  std::vector<StoreChange> changes;
  changes.reserve(writes.size());
  for (const auto& [job_id, write] : writes) {
    changes.push_back({.body = [this, id = &job_id, write = write]() -> absl::Status {
      mutex_.AssertHeld();
      return WriteJob(*id, *write);
    }});
  }
  Run(&changes);
  std::vector<absl::Status> statuses;
  statuses.reserve(changes.size());
  for (StoreChange& change : changes) statuses.push_back(std::move(change.status));
  return statuses;
}

absl::Status SqliteStore::WriteJob(const std::string& job_id, const JobWrite& write) {
  if (write.job.has_value()) {
    v1::Job job = write.job->job;
    const std::string spec = write.create ? job.spec().SerializeAsString() : std::string();
    const std::string plan =
        write.create || write.with_plan ? job.plan().SerializeAsString() : std::string();
    job.clear_spec();
    job.clear_plan();
    const std::string body = job.SerializeAsString();
    absl::Status status;
    if (write.create) {
      status = Sql("INSERT INTO jobs(id, spec, plan, job, checkpoint_dir, "
                   "attempts_without_progress, failures) "
                   "VALUES(?,?,?,?,?,?,?)")
                   .Bind(job_id)
                   .Bind(spec)
                   .Bind(plan)
                   .Bind(body)
                   .Bind(write.job->checkpoint_dir)
                   .Bind(write.job->attempts_without_progress)
                   .Bind(write.job->failures)
                   .Run();
    } else {
      status = Sql("UPDATE jobs SET job=?, checkpoint_dir=?, attempts_without_progress=?, "
                   "failures=? WHERE id=?")
                   .Bind(body)
                   .Bind(write.job->checkpoint_dir)
                   .Bind(write.job->attempts_without_progress)
                   .Bind(write.job->failures)
                   .Bind(job_id)
                   .Run();
      if (status.ok() && sqlite3_changes(database_) == 0) {
        status = absl::NotFoundError(absl::StrCat("there is no job '", job_id, "'"));
      }
      if (status.ok() && write.with_plan) {
        status = Sql("UPDATE jobs SET plan=? WHERE id=?").Bind(plan).Bind(job_id).Run();
      }
    }
    if (!status.ok()) return status;
  }
  if (write.drop_reports_from.has_value()) {
    absl::Status status = Sql("DELETE FROM log WHERE job=? AND (step>=? OR step<=?)")
                              .Bind(job_id)
                              .Bind(*write.drop_reports_from)
                              .Bind(ValidationKey(*write.drop_reports_from))
                              .Run();
    if (!status.ok()) return status;
  }
  const auto insert = [&](int64_t key, const v1::StepReport& report) {
    mutex_.AssertHeld();
    return Sql("INSERT OR REPLACE INTO log(job, step, body) VALUES(?,?,?)")
        .Bind(job_id)
        .Bind(key)
        .Bind(report.SerializeAsString())
        .Run();
  };
  // A validation comes between the reports of the steps before and after it.
  size_t validation = 0;
  const auto insert_validations = [&](int64_t before_step) {
    absl::Status status;
    for (; status.ok() && validation < write.validations.size(); ++validation) {
      const v1::StepReport& report = write.validations[validation];
      if (report.step() >= before_step) break;
      status = insert(ValidationKey(report.step()), report);
    }
    return status;
  };
  for (const v1::StepReport& report : write.reports) {
    absl::Status status = insert_validations(report.step());
    if (status.ok()) status = insert(report.step(), report);
    if (!status.ok()) return status;
  }
  if (absl::Status s = insert_validations(std::numeric_limits<int64_t>::max()); !s.ok()) return s;
  for (const v1::JobMessage& message : write.messages) {
    absl::Status status = Sql("INSERT INTO log(job, body, level, unix_ms) VALUES(?,?,?,?)")
                              .Bind(job_id)
                              .Bind(message.text())
                              .Bind(static_cast<int64_t>(message.level()))
                              .Bind(message.unix_ms())
                              .Run();
    if (!status.ok()) return status;
  }
  return write.idempotency_record.has_value() ? InsertIdempotencyRecord(*write.idempotency_record)
                                              : absl::OkStatus();
}

absl::Status SqliteStore::DeleteJob(const std::string& job_id,
                                    const IdempotencyRecord* idempotency_record) {
  return InTransaction([&]() -> absl::Status {
    mutex_.AssertHeld();
    absl::Status status = Sql("DELETE FROM jobs WHERE id=?").Bind(job_id).Run();
    if (status.ok() && sqlite3_changes(database_) == 0) {
      status = absl::NotFoundError(absl::StrCat("there is no job '", job_id, "'"));
    }
    if (status.ok()) status = Sql("DELETE FROM log WHERE job=?").Bind(job_id).Run();
    if (!status.ok() || idempotency_record == nullptr) return status;
    return InsertIdempotencyRecord(*idempotency_record);
  });
}

absl::StatusOr<JobRecord> SqliteStore::Get(const std::string& job_id) const {
  absl::MutexLock lock(&mutex_);
  Statement& query =
      Sql("SELECT job, spec, plan, checkpoint_dir, attempts_without_progress, failures FROM jobs "
          "WHERE id=?");
  ScopedStatementReset use(&query);
  absl::StatusOr<bool> row = query.Bind(job_id).Step();
  if (!row.ok()) return row.status();
  if (!*row) return absl::NotFoundError(absl::StrCat("there is no job '", job_id, "'"));
  JobRecord record;
  absl::Status status = ParseStored(query.Bytes(0), "job", &record.job);
  if (status.ok()) status = ParseStored(query.Bytes(1), "job's spec", record.job.mutable_spec());
  const std::string plan = query.Bytes(2);
  if (status.ok() && !plan.empty()) status = ParseStored(plan, "plan", record.job.mutable_plan());
  if (!status.ok()) return status;
  record.checkpoint_dir = query.Bytes(3);
  record.attempts_without_progress = static_cast<int32_t>(query.Int(4));
  record.failures = query.Bytes(5);
  return record;
}

absl::StatusOr<std::vector<JobRecord>> SqliteStore::List() const {
  absl::MutexLock lock(&mutex_);
  Statement& query =
      Sql("SELECT job, spec, checkpoint_dir, attempts_without_progress, failures FROM jobs ORDER "
          "BY number");
  ScopedStatementReset use(&query);
  std::vector<JobRecord> records;
  while (true) {
    absl::StatusOr<bool> row = query.Step();
    if (!row.ok()) return row.status();
    if (!*row) return records;
    JobRecord record;
    absl::Status status = ParseStored(query.Bytes(0), "job", &record.job);
    if (status.ok()) status = ParseStored(query.Bytes(1), "job's spec", record.job.mutable_spec());
    if (!status.ok()) return status;
    record.job.mutable_spec()->clear_graph();
    record.job.mutable_spec()->mutable_search()->clear_imported();
    record.checkpoint_dir = query.Bytes(2);
    record.attempts_without_progress = static_cast<int32_t>(query.Int(3));
    record.failures = query.Bytes(4);
    records.push_back(std::move(record));
  }
}

absl::StatusOr<std::vector<JobLogEntry>> SqliteStore::Log(const std::string& job_id,
                                                          int64_t after_sequence, int64_t from_step,
                                                          int limit) const {
  absl::MutexLock lock(&mutex_);
  Statement& query = Sql(
      "SELECT sequence, step IS NULL, body, step<0, level, unix_ms FROM log WHERE job=? AND "
      "sequence>? AND (step IS NULL OR step>=? OR (step<0 AND step<=?)) ORDER BY sequence LIMIT ?");
  ScopedStatementReset use(&query);
  query.Bind(job_id)
      .Bind(after_sequence)
      .Bind(from_step)
      .Bind(ValidationKey(from_step - 1))
      .Bind(limit);
  std::vector<JobLogEntry> entries;
  while (true) {
    absl::StatusOr<bool> row = query.Step();
    if (!row.ok()) return row.status();
    if (!*row) return entries;
    JobLogEntry entry;
    entry.sequence = query.Int(0);
    if (query.Int(1) != 0) {
      v1::JobMessage message;
      message.set_text(query.Bytes(2));
      message.set_level(static_cast<v1::JobMessage::Level>(query.Int(4)));
      message.set_unix_ms(query.Int(5));
      entry.entry = std::move(message);
    } else {
      v1::StepReport report;
      absl::Status status = ParseStored(query.Bytes(2), "step report", &report);
      if (!status.ok()) return status;
      if (query.Int(3) != 0) {
        entry.entry = LoggedValidation{std::move(report)};
      } else {
        entry.entry = std::move(report);
      }
    }
    entries.push_back(std::move(entry));
  }
}

absl::StatusOr<std::vector<v1::StepReport>> SqliteStore::Validations(
    const std::string& job_id) const {
  absl::MutexLock lock(&mutex_);
  Statement& query = Sql("SELECT body FROM log WHERE job=? AND step<0 ORDER BY step DESC");
  ScopedStatementReset use(&query);
  query.Bind(job_id);
  std::vector<v1::StepReport> validations;
  while (true) {
    absl::StatusOr<bool> row = query.Step();
    if (!row.ok()) return row.status();
    if (!*row) return validations;
    absl::Status status = ParseStored(query.Bytes(0), "validation", &validations.emplace_back());
    if (!status.ok()) return status;
  }
}

absl::StatusOr<std::optional<std::string>> SqliteStore::FindReply(
    const std::string& method, const std::string& key, const std::string& request_hash) const {
  {
    absl::MutexLock lock(&keys_mutex_);
    if (!keys_.contains(std::hash<std::string>()(key))) return std::optional<std::string>();
  }
  absl::MutexLock lock(&mutex_);
  Statement& query = Sql("SELECT method, hash, reply FROM idempotency_record WHERE key=?");
  ScopedStatementReset use(&query);
  absl::StatusOr<bool> row = query.Bind(key).Step();
  if (!row.ok()) return row.status();
  if (!*row) return std::optional<std::string>();
  if (query.Bytes(0) != method || query.Bytes(1) != request_hash) {
    return KeyWasUsedBefore(key, query.Bytes(0), method);
  }
  return std::optional<std::string>(query.Bytes(2));
}

absl::StatusOr<uint64_t> SqliteStore::NextEpoch() {
  uint64_t value = 0;
  absl::Status status = InTransaction([&]() -> absl::Status {
    mutex_.AssertHeld();
    absl::Status updated = Sql("UPDATE epoch SET value=value+1").Run();
    if (!updated.ok()) return updated;
    Statement& query = Sql("SELECT value FROM epoch");
    ScopedStatementReset use(&query);
    absl::StatusOr<bool> row = query.Step();
    if (!row.ok()) return row.status();
    value = static_cast<uint64_t>(query.Int(0));
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return value;
}

}  // namespace espalier
