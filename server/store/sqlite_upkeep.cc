// The parts of SqliteStore that concern its file: backup, checkpoints of the write-ahead log, and
// whether the file is still there.
#include <sqlite3.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "server/store/sqlite_store.h"

namespace espalier {
namespace {

// Copied between two looks at what else waits for the store: 1 MiB.
constexpr int kBackupPages = 256;

}  // namespace

absl::Status SqliteStore::BackUp(const std::string& path,
                                 const std::function<bool()>& stopped) const {
  sqlite3* opened = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &opened,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  const std::unique_ptr<sqlite3, int (*)(sqlite3*)> copy(opened, sqlite3_close);
  if (code != SQLITE_OK) return SqliteError(opened, absl::StrCat("backup to ", path));
  sqlite3_backup* backup;
  {
    absl::MutexLock lock(&mutex_);
    backup = sqlite3_backup_init(opened, "main", database_, "main");
  }
  if (backup == nullptr) return SqliteError(opened, absl::StrCat("backup to ", path));
  absl::Status status;
  int step = SQLITE_OK;
  // Writes of the same connection between two steps reach the copy, too.
  while (step == SQLITE_OK && status.ok()) {
    if (stopped && stopped()) {
      status = absl::CancelledError("the backup was stopped");
      break;
    }
    absl::MutexLock lock(&mutex_);
    step = sqlite3_backup_step(backup, kBackupPages);
  }
  absl::MutexLock lock(&mutex_);
  const int finished = sqlite3_backup_finish(backup);
  if (!status.ok()) return status;
  if (step == SQLITE_DONE && finished == SQLITE_OK) return absl::OkStatus();
  return SqliteError(opened, absl::StrCat("backup to ", path));
}

absl::Status SqliteStore::SetEpoch(uint64_t epoch) {
  absl::MutexLock lock(&mutex_);
  return Sql("UPDATE epoch SET value=?").Bind(static_cast<int64_t>(epoch)).Run();
}

absl::Status SqliteStore::Checkpoint() {
  absl::MutexLock lock(&mutex_);
  if (!written_) return absl::OkStatus();
  if (absl::Status status = CheckFile(); !status.ok()) return status;
  const int code =
      sqlite3_wal_checkpoint_v2(database_, "main", SQLITE_CHECKPOINT_TRUNCATE, nullptr, nullptr);
  if (code != SQLITE_OK) return SqliteError(database_, "job store: moving the log into the file");
  written_ = false;
  return absl::OkStatus();
}

absl::Status SqliteStore::CheckPresent() const {
  absl::MutexLock lock(&mutex_);
  return CheckFile();
}

absl::Status SqliteStore::CheckFile() const {
  int moved = 0;
  const int code = sqlite3_file_control(database_, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
  if (code == SQLITE_OK && moved == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "the job store ", sqlite3_db_filename(database_, "main"),
      " was moved or removed; nothing is written until it is back. If it is lost, restore a backup "
      "and start espalierd again"));
}

}  // namespace espalier
