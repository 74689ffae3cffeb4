#include "server/store/etcd/etcd_store.h"

#include <algorithm>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/random_id.h"
#include "server/store/idempotency.h"
#include "server/store/parse_stored.h"

namespace espalier {
namespace {

constexpr char kJob[] = "job", kBrief[] = "brief", kSpec[] = "spec", kPlan[] = "plan";
constexpr char kLog[] = "log", kValidations[] = "validations", kReply[] = "reply";
constexpr char kEpoch[] = "epoch", kDataFolder[] = "data-folder";
// Entries of one write: the low bits of their sequence numbers.
constexpr int kEntryBits = 20;
// Jobs that are written in one transaction, which may have 128 operations: each has at most 22.
constexpr size_t kTogether = 5;

absl::Status NoJob(const std::string& job_id) {
  return absl::NotFoundError(absl::StrCat("there is no job '", job_id, "'"));
}

bool IsOver(v1::JobState state) {
  return state == v1::SUCCEEDED || state == v1::FAILED || state == v1::CANCELLED;
}

absl::Status ReadJob(const std::string& bytes, JobRecord* record) {
  etcd_records::Job stored;
  absl::Status status = ParseStored(bytes, "job", &stored);
  if (status.ok()) status = ParseStored(stored.job(), "job", &record->job);
  if (!status.ok()) return status;
  record->checkpoint_dir = stored.checkpoint_dir();
  record->attempts_without_progress = stored.attempts_without_progress();
  record->failures = stored.failures();
  return absl::OkStatus();
}

}  // namespace

EtcdStore::JobLogs::JobLogs(const GuardedEtcd* etcd, const std::string& job_id)
    : all(etcd, EtcdKeys::LogOf(kLog, job_id)),
      validations(etcd, EtcdKeys::LogOf(kValidations, job_id)) {}

absl::StatusOr<std::unique_ptr<EtcdStore>> EtcdStore::Open(EtcdApi* etcd, const std::string& prefix,
                                                           LeaderGuard guard,
                                                           GuardedEtcd::Limits limits) {
  auto store = std::unique_ptr<EtcdStore>(new EtcdStore(etcd, prefix, std::move(guard), limits));
  if (absl::Status status = store->etcd_.Open(); !status.ok()) return status;
  store->new_ = store->etcd_.next_number() == 1;
  const absl::Status forgotten = store->ForgetRepliesBefore(absl::Now() - kRepliesKept);
  return forgotten.ok() ? absl::StatusOr<std::unique_ptr<EtcdStore>>(std::move(store)) : forgotten;
}

absl::Status EtcdStore::ForgetRepliesBefore(absl::Time time) {
  const int64_t oldest = absl::ToUnixSeconds(time);
  std::vector<std::string> old;
  int64_t revision = 0;
  const std::string folder = absl::StrCat(kReply, "/");
  absl::Status status = etcd_.ReadRange(
      folder, EndOfPrefix(folder), &revision,
      [&](const GuardedEtcd::Named& value) -> absl::StatusOr<bool> {
        etcd_records::Reply reply;
        if (absl::Status s = ParseStored(value.bytes, "recorded reply", &reply); !s.ok()) return s;
        if (reply.unix_seconds() < oldest) old.push_back(value.name);
        return true;
      });
  constexpr size_t kAtOnce = 32;
  for (size_t at = 0; at < old.size() && status.ok(); at += kAtOnce) {
    EtcdChange change;
    for (size_t i = at; i < std::min(old.size(), at + kAtOnce); ++i) change.Delete(old[i]);
    absl::MutexLock lock(&mutex_);
    status = etcd_.Commit(change);
  }
  return status;
}

absl::Status EtcdStore::BindDataFolder(const std::string& id) {
  absl::MutexLock lock(&mutex_);
  const auto known = etcd_.Read({kDataFolder});
  if (!known.ok()) return known.status();
  if (!known->front().has_value()) {
    EtcdChange change;
    change.Put(kDataFolder, id);
    return etcd_.Commit(change);
  }
  if (*known->front() == id) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the jobs in etcd below ", etcd_.keys().prefix(),
      " belong to another data folder than this coordinator's: mount the folder that the other "
      "coordinator uses (NFS, a shared volume) and name it with --data-dir, give both "
      "--artifact-store and --checkpoint-store, with which each has a folder of its own, or give "
      "this one another prefix with --job-store"));
}

absl::StatusOr<std::string> EtcdStore::BoundId() {
  absl::MutexLock lock(&mutex_);
  const auto known = etcd_.Read({kDataFolder});
  if (!known.ok()) return known.status();
  if (known->front().has_value()) return *known->front();
  const absl::StatusOr<std::string> id = RandomId();
  if (!id.ok()) return id.status();
  EtcdChange change;
  change.Put(kDataFolder, *id);
  if (absl::Status s = etcd_.Commit(change); !s.ok()) return s;
  return *id;
}

absl::StatusOr<EtcdStore::JobLogs*> EtcdStore::LogsOf(const std::string& job_id) {
  std::unique_ptr<JobLogs>& logs = logs_[job_id];
  if (logs == nullptr) {
    auto loaded = std::make_unique<JobLogs>(&etcd_, job_id);
    absl::Status status = loaded->all.Load();
    if (status.ok()) status = loaded->validations.Load();
    if (!status.ok()) {
      logs_.erase(job_id);
      return status;
    }
    logs = std::move(loaded);
  }
  return logs.get();
}

void EtcdStore::AddJob(const std::string& job_id, const JobWrite& write, uint64_t place,
                       EtcdChange* change) {
  v1::Job job = write.job->job;
  change->Require(
      !write.create, EtcdKeys::Name(kJob, job_id),
      write.create ? absl::AlreadyExistsError(absl::StrCat("there is already a job '", job_id, "'"))
                   : NoJob(job_id));
  if (write.create) {
    change->Put(EtcdKeys::Name(kSpec, job_id), job.spec().SerializeAsString());
    job.mutable_spec()->clear_graph();
    job.mutable_spec()->mutable_search()->clear_imported();
    etcd_records::Brief brief;
    brief.set_number((etcd_.next_number() << kEntryBits) + place);
    brief.set_spec(job.spec().SerializeAsString());
    change->Put(EtcdKeys::Name(kBrief, job_id), brief.SerializeAsString());
  }
  if (write.create || write.with_plan) {
    change->Put(EtcdKeys::Name(kPlan, job_id), job.plan().SerializeAsString());
  }
  job.clear_spec();
  job.clear_plan();
  etcd_records::Job stored;
  stored.set_job(job.SerializeAsString());
  stored.set_checkpoint_dir(write.job->checkpoint_dir);
  stored.set_attempts_without_progress(write.job->attempts_without_progress);
  stored.set_failures(write.job->failures);
  change->Put(EtcdKeys::Name(kJob, job_id), stored.SerializeAsString());
}

absl::Status EtcdStore::AddLog(JobLogs* logs, const JobWrite& write, EtcdChange* change) {
  std::vector<etcd_records::LogEntry> all, validations;
  uint64_t sequence = etcd_.next_number() << kEntryBits;
  const auto add = [&](int64_t step) -> etcd_records::LogEntry& {
    etcd_records::LogEntry& entry = all.emplace_back();
    entry.set_sequence(sequence++);
    entry.set_step(step);
    return entry;
  };
  // A validation comes between the reports of the steps before and after it.
  size_t validation = 0;
  const auto add_validations = [&](int64_t before_step) {
    for (; validation < write.validations.size(); ++validation) {
      const v1::StepReport& report = write.validations[validation];
      if (report.step() >= before_step) break;
      etcd_records::LogEntry& entry = add(report.step());
      entry.set_validation(report.SerializeAsString());
      validations.push_back(entry);
    }
  };
  for (const v1::StepReport& report : write.reports) {
    add_validations(report.step());
    add(report.step()).set_report(report.SerializeAsString());
  }
  add_validations(std::numeric_limits<int64_t>::max());
  for (const v1::JobMessage& message : write.messages) {
    add(0).set_message(message.SerializeAsString());
  }
  if (all.size() > size_t{1} << kEntryBits) {
    return absl::ResourceExhaustedError(absl::StrCat("one write to a job's log has ", all.size(),
                                                     " entries; at most ", size_t{1} << kEntryBits,
                                                     " can be written at once"));
  }
  absl::Status status = logs->all.Change(write.drop_reports_from, std::move(all), change);
  if (!status.ok()) return status;
  return logs->validations.Change(write.drop_reports_from, std::move(validations), change);
}

void EtcdStore::AddReply(const IdempotencyRecord* record, EtcdChange* change) {
  if (record == nullptr) return;
  const std::string name = EtcdKeys::Name(kReply, record->key);
  change->Require(false, name,
                  absl::AlreadyExistsError(absl::StrCat(
                      "idempotency_key '", CallersKey(record->key), "' was used before")));
  etcd_records::Reply reply;
  reply.set_method(record->method);
  reply.set_request_hash(record->request_hash);
  reply.set_reply(record->reply);
  reply.set_unix_seconds(absl::ToUnixSeconds(absl::Now()));
  change->Put(name, reply.SerializeAsString());
}

absl::Status EtcdStore::WriteTogether(const NamedWrite* begin, const NamedWrite* end) {
  EtcdChange change;
  std::vector<JobLogs*> changed;
  absl::Status status;
  for (const NamedWrite* named = begin; named != end && status.ok(); ++named) {
    const auto& [job_id, write] = *named;
    if (write->job.has_value()) {
      AddJob(job_id, *write, static_cast<uint64_t>(named - begin), &change);
    }
    if (write->idempotency_record.has_value()) AddReply(&*write->idempotency_record, &change);
    if (!write->drop_reports_from.has_value() && write->reports.empty() &&
        write->validations.empty() && write->messages.empty()) {
      continue;
    }
    absl::StatusOr<JobLogs*> logs = LogsOf(job_id);
    status = logs.status();
    if (!logs.ok()) break;
    changed.push_back(*logs);
    status = AddLog(*logs, *write, &change);
  }
  if (status.ok()) status = etcd_.Commit(change);
  for (JobLogs* logs : changed) {
    if (status.ok()) {
      logs->all.Commit();
      logs->validations.Commit();
    } else {
      logs->all.Forget();
      logs->validations.Forget();
    }
  }
  for (const NamedWrite* named = begin; named != end; ++named) {
    const JobWrite& write = *named->second;
    if (status.ok() && write.job.has_value() && IsOver(write.job->job.state())) {
      logs_.erase(named->first);
    }
  }
  return status;
}

absl::Status EtcdStore::Write(const std::string& job_id, const JobWrite& write) {
  absl::MutexLock lock(&mutex_);
  const NamedWrite one(job_id, &write);
  return WriteTogether(&one, &one + 1);
}

std::vector<absl::Status> EtcdStore::WriteAll(const std::vector<NamedWrite>& writes) {
  absl::MutexLock lock(&mutex_);
  std::vector<absl::Status> statuses;
  while (statuses.size() < writes.size()) {
    const NamedWrite* const begin = writes.data() + statuses.size();
    const NamedWrite* const end = begin + std::min(kTogether, writes.size() - statuses.size());
    const absl::Status together = WriteTogether(begin, end);
    if (together.ok() || absl::IsUnavailable(together) || end - begin == 1) {
      statuses.insert(statuses.end(), static_cast<size_t>(end - begin), together);
      continue;
    }
    for (const NamedWrite* one = begin; one != end; ++one) {
      statuses.push_back(WriteTogether(one, one + 1));
    }
  }
  return statuses;
}

absl::Status EtcdStore::DeleteJob(const std::string& job_id,
                                  const IdempotencyRecord* idempotency_record) {
  absl::MutexLock lock(&mutex_);
  EtcdChange change;
  change.Require(true, EtcdKeys::Name(kJob, job_id), NoJob(job_id));
  for (const char* kind : {kJob, kBrief, kSpec, kPlan}) change.Delete(EtcdKeys::Name(kind, job_id));
  for (const char* kind : {kLog, kValidations}) {
    const std::string log = EtcdKeys::LogOf(kind, job_id);
    change.DeleteRange(log, EndOfPrefix(log));
  }
  AddReply(idempotency_record, &change);
  absl::Status status = etcd_.Commit(change);
  if (status.ok()) logs_.erase(job_id);
  return status;
}

absl::StatusOr<JobRecord> EtcdStore::Get(const std::string& job_id) const {
  return GetAt(job_id, 0);
}

absl::StatusOr<JobRecord> EtcdStore::GetAt(const std::string& job_id, int64_t revision) const {
  const auto values = etcd_.Read(
      {EtcdKeys::Name(kJob, job_id), EtcdKeys::Name(kSpec, job_id), EtcdKeys::Name(kPlan, job_id)},
      revision);
  if (!values.ok()) return values.status();
  const std::optional<std::string>&job = (*values)[0], &spec = (*values)[1], &plan = (*values)[2];
  if (!job.has_value()) return NoJob(job_id);
  JobRecord record;
  absl::Status status = ReadJob(*job, &record);
  if (status.ok()) {
    status = ParseStored(spec.value_or(""), "job's spec", record.job.mutable_spec());
  }
  if (status.ok() && !plan.value_or("").empty()) {
    status = ParseStored(*plan, "plan", record.job.mutable_plan());
  }
  if (!status.ok()) return status;
  return record;
}

absl::StatusOr<std::map<std::string, std::string>> EtcdStore::ReadFolder(const std::string& folder,
                                                                         int64_t* revision) const {
  std::map<std::string, std::string> values;
  const std::string first = absl::StrCat(folder, "/");
  absl::Status status = etcd_.ReadRange(
      first, EndOfPrefix(first), revision, [&](GuardedEtcd::Named value) -> absl::StatusOr<bool> {
        values[UnescapedKey(value.name.substr(first.size()))] = std::move(value.bytes);
        return true;
      });
  if (!status.ok()) return status;
  return values;
}

absl::StatusOr<std::vector<JobRecord>> EtcdStore::List() const {
  int64_t revision = 0;
  return ListAt(&revision);
}

absl::StatusOr<std::vector<JobRecord>> EtcdStore::ListAt(int64_t* revision) const {
  const auto jobs = ReadFolder(kJob, revision);
  if (!jobs.ok()) return jobs.status();
  const auto briefs = ReadFolder(kBrief, revision);
  if (!briefs.ok()) return briefs.status();
  std::map<uint64_t, JobRecord> records;  // in order of creation
  for (const auto& [id, bytes] : *jobs) {
    JobRecord record;
    absl::Status status = ReadJob(bytes, &record);
    const auto found = briefs->find(id);
    etcd_records::Brief brief;
    if (status.ok()) {
      status = ParseStored(found == briefs->end() ? "" : found->second, "job's spec", &brief);
    }
    if (status.ok()) status = ParseStored(brief.spec(), "job's spec", record.job.mutable_spec());
    if (!status.ok()) return status;
    records[brief.number()] = std::move(record);
  }
  std::vector<JobRecord> list;
  list.reserve(records.size());
  for (auto& [number, record] : records) list.push_back(std::move(record));
  return list;
}

absl::StatusOr<std::vector<JobLogEntry>> EtcdStore::Log(const std::string& job_id,
                                                        int64_t after_sequence, int64_t from_step,
                                                        int limit) const {
  std::vector<JobLogEntry> entries;
  absl::Status parsed;
  int64_t revision = 0;
  absl::Status status =
      EtcdLog::Read(etcd_, EtcdKeys::LogOf(kLog, job_id),
                    static_cast<uint64_t>(std::max<int64_t>(0, after_sequence)), &revision,
                    [&](const etcd_records::LogEntry& stored) {
                      if (static_cast<int>(entries.size()) >= limit) return false;
                      JobLogEntry entry;
                      entry.sequence = static_cast<int64_t>(stored.sequence());
                      if (stored.has_message()) {
                        v1::JobMessage message;
                        parsed = ParseStored(stored.message(), "job's message", &message);
                        entry.entry = std::move(message);
                      } else if (stored.has_validation()) {
                        if (stored.step() < from_step - 1) return true;
                        LoggedValidation validation;
                        parsed = ParseStored(stored.validation(), "validation", &validation.report);
                        entry.entry = std::move(validation);
                      } else {
                        if (stored.step() < from_step) return true;
                        v1::StepReport report;
                        parsed = ParseStored(stored.report(), "step report", &report);
                        entry.entry = std::move(report);
                      }
                      entries.push_back(std::move(entry));
                      return parsed.ok();
                    });
  if (status.ok()) status = parsed;
  if (!status.ok()) return status;
  return entries;
}

absl::StatusOr<std::vector<v1::StepReport>> EtcdStore::Validations(
    const std::string& job_id) const {
  std::vector<v1::StepReport> validations;
  absl::Status parsed;
  int64_t revision = 0;
  absl::Status status = EtcdLog::Read(etcd_, EtcdKeys::LogOf(kValidations, job_id), 0, &revision,
                                      [&](const etcd_records::LogEntry& stored) {
                                        parsed = ParseStored(stored.validation(), "validation",
                                                             &validations.emplace_back());
                                        return parsed.ok();
                                      });
  if (status.ok()) status = parsed;
  if (!status.ok()) return status;
  std::stable_sort(
      validations.begin(), validations.end(),
      [](const v1::StepReport& a, const v1::StepReport& b) { return a.step() < b.step(); });
  return validations;
}

absl::StatusOr<std::optional<std::string>> EtcdStore::FindReply(
    const std::string& method, const std::string& key, const std::string& request_hash) const {
  const auto found = etcd_.Read({EtcdKeys::Name(kReply, key)});
  if (!found.ok()) return found.status();
  if (!found->front().has_value()) return std::optional<std::string>();
  etcd_records::Reply reply;
  if (absl::Status s = ParseStored(*found->front(), "recorded reply", &reply); !s.ok()) return s;
  if (reply.method() != method || reply.request_hash() != request_hash) {
    return KeyWasUsedBefore(key, reply.method(), method);
  }
  return std::optional<std::string>(reply.reply());
}

absl::StatusOr<uint64_t> EtcdStore::NextEpoch() {
  absl::MutexLock lock(&mutex_);
  const auto found = etcd_.Read({kEpoch});
  if (!found.ok()) return found.status();
  uint64_t epoch = 0;
  if (found->front().has_value() && !absl::SimpleAtoi(*found->front(), &epoch)) {
    return absl::DataLossError("job store: the epoch in etcd is no number");
  }
  EtcdChange change;
  change.Put(kEpoch, absl::StrCat(++epoch));
  if (absl::Status status = etcd_.Commit(change); !status.ok()) return status;
  return epoch;
}

}  // namespace espalier
