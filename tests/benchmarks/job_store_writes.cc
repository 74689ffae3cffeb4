// What a write to the job store takes: SQLite in a folder against etcd on this machine, one member.
// The time of a submit is what a client waits for the store; etcd's space is that of a job of ten
// thousand steps, each written by itself.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/store/etcd/etcd_process.h"
#include "server/store/etcd/etcd_store.h"
#include "server/store/sqlite_store.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/seconds.h"

namespace espalier {
namespace {

constexpr int kSubmits = 500, kSteps = 10'000;
constexpr size_t kSpecBytes = 20 << 10;  // a graph of some hundred operators

// Counts what is sent to etcd.
class CountingEtcd : public EtcdApi {
 public:
  explicit CountingEtcd(EtcdApi* etcd) : etcd_(*etcd) {}
  int64_t bytes = 0;

  absl::StatusOr<etcdserverpb::RangeResponse> Range(
      const etcdserverpb::RangeRequest& request) override {
    return etcd_.Range(request);
  }
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request) override {
    for (const etcdserverpb::RequestOp& op : request.success()) {
      const etcdserverpb::PutRequest& put = op.request_put();
      bytes += static_cast<int64_t>(put.key().size() + put.value().size());
    }
    return etcd_.Txn(request);
  }
  absl::StatusOr<Lease> GrantLease(absl::Duration ttl) override { return etcd_.GrantLease(ttl); }
  absl::StatusOr<absl::Duration> KeepAlive(int64_t lease) override {
    return etcd_.KeepAlive(lease);
  }
  absl::Status RevokeLease(int64_t lease) override { return etcd_.RevokeLease(lease); }

 private:
  EtcdApi& etcd_;
};

JobWrite Submit(const std::string& id) {
  JobWrite write;
  write.create = true;
  write.job.emplace();
  write.job->job.set_id(id);
  write.job->job.mutable_spec()->mutable_graph()->set_name(std::string(kSpecBytes, 'x'));
  write.idempotency_record = {"Submit", absl::StrCat("key of ", id), std::string(64, 'h'), id};
  return write;
}

JobWrite Step(const std::string& id, int64_t step) {
  JobWrite write;
  write.job.emplace();
  write.job->job.set_id(id);
  write.job->job.set_steps_done(step + 1);
  v1::StepReport& report = write.reports.emplace_back();
  report.set_step(step);
  report.set_seconds(0.1);
  (*report.mutable_values())["loss"] = 1.0 / static_cast<double>(step + 1);
  return write;
}

struct Times {
  double median, p99;  // milliseconds
};
Times Measure(int count, const std::function<absl::Status(int)>& write) {
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    const double begin = Seconds();
    const absl::Status status = write(i);
    times.push_back((Seconds() - begin) * 1e3);
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      std::exit(1);
    }
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() * 99 / 100]};
}

int Run(const std::string& folder) {
  if (!EtcdProcess::IsInstalled()) {
    std::fprintf(stderr, "etcd is not installed: deploy/install.sh --tests\n");
    return 1;
  }
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/benchmark.db";
  for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(path + suffix);
  const EtcdProcess etcd(folder + "/etcd");
  const std::unique_ptr<EtcdClient> client = etcd.Client();
  CountingEtcd counting(client.get());
  auto sqlite = SqliteStore::Open(path);
  auto shared = EtcdStore::Open(&counting, "/benchmark", LeadForever(client.get(), "/benchmark"));
  if (!sqlite.ok() || !shared.ok()) {
    std::fprintf(stderr, "%s %s\n", sqlite.status().ToString().c_str(),
                 shared.status().ToString().c_str());
    return 1;
  }
  const std::string database = folder + "/etcd/member/snap/db";
  uint64_t before = 0;  // the steps
  Report report("job_store_writes");
  report.Table("Writes to the job store, milliseconds",
               {"store", "submit, median", "submit, 99 %", "step, median", "step, 99 %"});
  for (JobStore* store :
       {static_cast<JobStore*>(sqlite->get()), static_cast<JobStore*>(shared->get())}) {
    const Times submit = Measure(kSubmits, [&](int i) {
      const std::string id = absl::StrCat("job-", i);
      return store->Write(id, Submit(id));
    });
    counting.bytes = 0;
    before = std::filesystem::file_size(database);
    const Times step =
        Measure(kSteps, [&](int i) { return store->Write("job-0", Step("job-0", i)); });
    report.Row({Text(store == sqlite->get() ? "SQLite" : "etcd"), Number(submit.median, 2),
                Number(submit.p99, 2), Number(step.median, 2), Number(step.p99, 2)});
  }
  int64_t kept = 0, keys = 0;
  for (const char* folder : {"/benchmark/v/log/job-0/", "/benchmark/c/log/job-0/"}) {
    etcdserverpb::RangeRequest log;
    log.set_key(folder);
    log.set_range_end(EndOfPrefix(folder));
    const auto found = client->Range(log);
    if (!found.ok()) return 1;
    for (const mvccpb::KeyValue& pair : found->kvs()) {
      ++keys;
      kept += static_cast<int64_t>(pair.key().size() + pair.value().size());
    }
  }
  report.Note(absl::StrCat("A log of ", kSteps, " steps, each written by itself: ", keys, " keys, ",
                           kept / 1024, " KiB. Written for it: ", counting.bytes / 1024,
                           " KiB, by which etcd's file grows to ",
                           std::filesystem::file_size(database) >> 20, " from ", before >> 20,
                           " MiB until it compacts its history."));
  return report.Print(false, "");
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  return espalier::Run(argc > 1 ? argv[1]
                                : std::filesystem::temp_directory_path() / "espalier-job-store");
}
