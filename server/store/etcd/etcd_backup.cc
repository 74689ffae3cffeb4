// EtcdStore::BackUp: a copy of everything that etcd had at one revision, as a file of SqliteStore.
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/store/etcd/etcd_store.h"
#include "server/store/sqlite_store.h"

namespace espalier {
namespace {

// Of reports that are written at once.
constexpr size_t kAtOnce = 1000;

// Writes a log to a store in the order of its entries.
class LogCopy {
 public:
  LogCopy(SqliteStore* copy, std::string job_id) : copy_(*copy), job_id_(std::move(job_id)) {}

  absl::Status Add(const etcd_records::LogEntry& entry) {
    // Within one write reports come before messages.
    const bool full = write_.reports.size() + write_.validations.size() >= kAtOnce ||
                      write_.messages.size() >= kAtOnce;
    if (full || (!write_.messages.empty() && !entry.has_message())) {
      if (absl::Status status = Flush(); !status.ok()) return status;
    }
    const auto parse = [](const std::string& bytes, google::protobuf::MessageLite* message) {
      return message->ParseFromString(bytes)
                 ? absl::OkStatus()
                 : absl::DataLossError("job store: an entry of a log in etcd does not parse");
    };
    if (entry.has_message()) return parse(entry.message(), &write_.messages.emplace_back());
    if (entry.has_validation()) {
      return parse(entry.validation(), &write_.validations.emplace_back());
    }
    // A report after the validation of a later step: as it was logged.
    if (!write_.validations.empty() && write_.validations.back().step() >= entry.step()) {
      if (absl::Status status = Flush(); !status.ok()) return status;
    }
    return parse(entry.report(), &write_.reports.emplace_back());
  }

  absl::Status Flush() {
    absl::Status status = copy_.Write(job_id_, write_);
    write_ = JobWrite();
    return status;
  }

 private:
  SqliteStore& copy_;
  const std::string job_id_;
  JobWrite write_;
};

absl::Status CopyReply(SqliteStore& copy, const std::string& key, const std::string& bytes) {
  etcd_records::Reply reply;
  if (!reply.ParseFromString(bytes)) {
    return absl::DataLossError("job store: a recorded reply in etcd does not parse");
  }
  JobWrite write;
  write.idempotency_record = {reply.method(), key, reply.request_hash(), reply.reply()};
  return copy.Write("", write);
}

}  // namespace

absl::Status EtcdStore::BackUp(const std::string& path,
                               const std::function<bool()>& stopped) const {
  absl::StatusOr<std::unique_ptr<SqliteStore>> opened = SqliteStore::Open(path);
  if (!opened.ok()) return opened.status();
  SqliteStore& copy = **opened;
  const auto check = [&] {
    return stopped && stopped() ? absl::CancelledError("the backup was stopped") : absl::OkStatus();
  };
  int64_t revision = 0;  // of the first read
  absl::StatusOr<std::vector<JobRecord>> jobs = ListAt(&revision);
  if (!jobs.ok()) return jobs.status();
  for (JobRecord& record : *jobs) {
    if (absl::Status s = check(); !s.ok()) return s;
    const std::string id = record.job.id();
    JobWrite create;
    create.create = true;
    absl::StatusOr<JobRecord> whole = GetAt(id, revision);
    if (!whole.ok()) return whole.status();
    create.job = *std::move(whole);
    if (absl::Status s = copy.Write(id, create); !s.ok()) return s;
    LogCopy log(&copy, id);
    absl::Status status;
    absl::Status read = EtcdLog::Read(etcd_, EtcdKeys::LogOf("log", id), 0, &revision,
                                      [&](const etcd_records::LogEntry& entry) {
                                        status = log.Add(entry);
                                        return status.ok();
                                      });
    if (status.ok()) status = read;
    if (status.ok()) status = log.Flush();
    if (!status.ok()) return status;
  }
  const auto each = [&](const char* folder, const auto& write) -> absl::Status {
    const auto values = ReadFolder(folder, &revision);
    if (!values.ok()) return values.status();
    for (const auto& [name, bytes] : *values) {
      absl::Status status = check();
      if (status.ok()) status = write(name, bytes);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  };
  const auto damaged = [](const char* what) {
    return absl::DataLossError(absl::StrCat("job store: ", what, " in etcd does not parse"));
  };
  absl::Status status = each("reply", [&](const std::string& key, const std::string& bytes) {
    return CopyReply(copy, key, bytes);
  });
  if (!status.ok()) return status;
  status = each("artifact", [&](const std::string&, const std::string& bytes) -> absl::Status {
    etcd_records::Artifact stored;
    ArtifactRecord record;
    if (!stored.ParseFromString(bytes) || !record.artifact.ParseFromString(stored.artifact())) {
      return damaged("an artifact");
    }
    record.folder = stored.folder();
    return copy.PutArtifact(record, nullptr);
  });
  if (!status.ok()) return status;
  status = each("served", [&](const std::string&, const std::string& bytes) -> absl::Status {
    v1::ServeModelRequest request;
    if (!request.ParseFromString(bytes)) return damaged("a served model");
    return copy.PutServed(request, nullptr);
  });
  if (!status.ok()) return status;
  status = each("blob", [&](const std::string& name, const std::string& bytes) {
    return copy.PutBlob(name, bytes);
  });
  if (!status.ok()) return status;
  const auto epoch = etcd_.Read({"epoch"}, revision);
  if (!epoch.ok()) return epoch.status();
  uint64_t number = 0;
  if (epoch->front().has_value() && !absl::SimpleAtoi(*epoch->front(), &number)) {
    return damaged("the epoch");
  }
  if (status = copy.SetEpoch(number); !status.ok()) return status;
  return copy.Checkpoint();
}

}  // namespace espalier
