// Transactions of SqliteStore. A sync of the disk takes milliseconds, and one is enough for all
// changes that wait for it: the first thread that comes writes for those that come meanwhile.
#include <sqlite3.h>

#include <utility>

#include "server/store/sqlite_store.h"

namespace espalier {

absl::Status SqliteStore::InTransaction(std::function<absl::Status()> body) {
  std::vector<StoreChange> changes(1);
  changes[0].body = std::move(body);
  Run(&changes);
  return std::move(changes[0].status);
}

void SqliteStore::Run(std::vector<StoreChange>* changes) {
  if (changes->empty()) return;
  std::vector<StoreChange*> together;
  {
    absl::MutexLock lock(&queue_mutex_);
    for (StoreChange& change : *changes) queue_.push_back(&change);
    // All changes of a call are taken out of the queue at once, so the last one's end is the end.
    while (writing_ && !changes->back().done) written_together_.Wait(&queue_mutex_);
    if (changes->back().done) return;
    writing_ = true;
    together.swap(queue_);
  }
  {
    absl::MutexLock lock(&mutex_);
    RunTogether(together);
  }
  absl::MutexLock lock(&queue_mutex_);
  for (StoreChange* change : together) change->done = true;
  writing_ = false;
  written_together_.SignalAll();
}

void SqliteStore::RunTogether(const std::vector<StoreChange*>& changes) {
  if (RunInOneTransaction(changes) || changes.size() == 1) return;
  // SQLite has undone them all, of which one may be to blame.
  for (StoreChange* change : changes) RunInOneTransaction({change});
}

bool SqliteStore::RunInOneTransaction(const std::vector<StoreChange*>& changes) {
  // SQLite would go on in a file that no restart will find.
  absl::Status status = CheckFile();
  if (status.ok()) status = Execute("BEGIN IMMEDIATE");
  if (!status.ok()) {
    for (StoreChange* change : changes) change->status = status;
    return true;  // it concerns all of them
  }
  written_ = true;
  const bool alone = changes.size() == 1;
  for (StoreChange* change : changes) {
    change->status = alone ? absl::OkStatus() : Execute("SAVEPOINT change");
    if (change->status.ok()) change->status = change->body();
    // SQLite may already have rolled all of it back (on a full disk).
    if (sqlite3_get_autocommit(database_) != 0) return false;
    if (alone) continue;
    status = change->status.ok() ? absl::OkStatus() : Execute("ROLLBACK TO change");
    if (status.ok()) status = Execute("RELEASE change");
    if (!status.ok()) break;
  }
  if (alone) status = changes[0]->status;
  if (status.ok()) status = Execute("COMMIT");
  if (status.ok()) return true;
  if (sqlite3_get_autocommit(database_) == 0) Execute("ROLLBACK").IgnoreError();
  if (alone) changes[0]->status = status;
  return false;
}

}  // namespace espalier
