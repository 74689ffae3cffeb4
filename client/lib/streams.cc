// The streaming calls: Watch, Generate, VerifyLossless, Upload, Download, Backup and Quantize.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "client/lib/call.h"
#include "client/lib/client.h"
#include "client/lib/client_impl.h"
#include "proto/states.h"

namespace espalier {
namespace {

constexpr size_t kChunkBytes = 1 << 20;

absl::StatusOr<int64_t> SizeOfFile(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  return static_cast<int64_t>(info.st_size);
}

// An error of this machine, not of the coordinator.
absl::Status CannotWrite(const char* what, const std::string& path, const std::string& why) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot ", what, " ", path, ": ", why, "; choose another folder"));
}

// Writes one artifact's files; each appears under its name when the next one starts or at Finish.
class FolderWriter {
 public:
  explicit FolderWriter(std::string folder) : folder_(std::move(folder)) {}
  ~FolderWriter() {
    if (!name_.empty()) std::remove((Path() + ".part").c_str());
  }

  absl::Status Start(const std::string& name) {
    if (absl::Status s = Finish(); !s.ok()) return s;
    const std::filesystem::path path(name);
    const bool climbs = std::find(path.begin(), path.end(), "..") != path.end();
    if (name.empty() || path.is_absolute() || climbs || path.filename().empty()) {
      return absl::DataLossError(absl::StrCat("the coordinator sent a file named \"", name,
                                              "\", which lies outside the folder"));
    }
    name_ = name;
    std::error_code error;
    const std::filesystem::path parent = std::filesystem::path(Path()).parent_path();
    std::filesystem::create_directories(parent, error);
    if (error) return CannotWrite("make the folder", parent.string(), error.message());
    out_.open(Path() + ".part", std::ios::binary | std::ios::trunc);
    if (!out_) return CannotWrite("write", Path() + ".part", std::strerror(errno));
    sum_ = std::make_unique<Sha256>();
    return absl::OkStatus();
  }

  absl::Status Append(const std::string& chunk) {
    if (name_.empty())
      return absl::DataLossError("the coordinator sent bytes before any file name");
    out_.write(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    if (!out_)
      return absl::ResourceExhaustedError(absl::StrCat("cannot write ", Path(), ": disk full?"));
    sum_->Add(chunk);
    return absl::OkStatus();
  }

  absl::Status Finish() {
    if (name_.empty()) return absl::OkStatus();
    out_.close();
    if (!out_)
      return absl::ResourceExhaustedError(absl::StrCat("cannot write ", Path(), ": disk full?"));
    std::error_code error;
    std::filesystem::rename(Path() + ".part", Path(), error);
    if (error) return CannotWrite("write", Path(), error.message());
    out_.clear();
    sums_[name_] = sum_->Hex();
    name_.clear();
    return absl::OkStatus();
  }

  // Makes the started file readable by its owner only.
  absl::Status Protect() const {
    constexpr auto kOwner =
        std::filesystem::perms::owner_read | std::filesystem::perms::owner_write;
    std::error_code error;
    std::filesystem::permissions(Path() + ".part", kOwner, error);
    return error ? CannotWrite("protect", Path(), error.message()) : absl::OkStatus();
  }

  // Finishes the file if it has this hash.
  absl::Status FinishAs(const std::string& sha256) {
    const std::string found = std::exchange(sum_, std::make_unique<Sha256>())->Hex();
    if (found == sha256) return Finish();
    return absl::DataLossError(
        absl::StrCat(Path(), ": the copy does not have the coordinator's hash; try again"));
  }

  // As Artifact.sha256: the hash of a single file, or of the sorted "name sha256" lines.
  absl::Status Check(const v1::Artifact& artifact) const {
    std::string lines;
    for (const auto& [name, sum] : sums_) absl::StrAppend(&lines, name, " ", sum, "\n");
    Sha256 folder;
    folder.Add(lines);
    const std::string whole = folder.Hex();
    const bool same = artifact.sha256() == whole ||
                      (sums_.size() == 1 && artifact.sha256() == sums_.begin()->second);
    if (same) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("artifact ", artifact.name(), ": what arrived has sha256 ",
                     sums_.size() == 1 ? sums_.begin()->second : whole, ", the coordinator says ",
                     artifact.sha256(), "; download it again"));
  }

 private:
  std::string Path() const { return folder_ + "/" + name_; }

  std::string folder_;
  std::string name_;  // of the file being written
  std::ofstream out_;
  std::unique_ptr<Sha256> sum_;
  std::map<std::string, std::string> sums_;
};

}  // namespace

void Canceller::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  if (end_) end_();
}

CancellableCall::CancellableCall(Canceller* canceller, grpc::ClientContext* context)
    : canceller_(canceller) {
  if (canceller_ == nullptr) return;
  absl::MutexLock lock(&canceller_->mutex_);
  canceller_->end_ = [context] { context->TryCancel(); };
  // A call with a context that is already cancelled ends at once.
  if (canceller_->cancelled_) context->TryCancel();
}

CancellableCall::~CancellableCall() {
  if (canceller_ == nullptr) return;
  absl::MutexLock lock(&canceller_->mutex_);
  canceller_->end_ = nullptr;
}

absl::Status Client::Watch(const std::string& job_id, int64_t from_step,
                           const std::function<bool(const v1::JobEvent&)>& event, bool follow) {
  int64_t validated = -1;  // the last validation seen came after this step
  const auto watch = [&](const auto& alive) -> grpc::Status {
    grpc::ClientContext context;
    impl_->Prepare(&context, absl::InfiniteDuration());
    v1::WatchRequest request;
    request.set_job_id(job_id);
    request.set_from_step(from_step);
    request.set_no_follow(!follow);
    auto reader = impl_->training->Watch(&context, request);
    v1::JobEvent next;
    bool over = false;
    while (reader->Read(&next)) {
      alive();
      if (next.has_step()) {
        from_step = std::max(from_step, next.step().step() + 1);
        validated = std::min(validated, next.step().step() - 1);  // it repeats steps
      }
      if (next.has_validation()) {
        // Sent again after a new connection.
        if (next.validation().step() <= validated) continue;
        validated = next.validation().step();
      }
      if (next.has_job()) {
        over = IsOver(next.job().state());
        // After a worker is lost, the job resumes from its checkpoint and repeats those steps.
        if (next.job().state() == v1::RECOVERING) {
          from_step = std::min<int64_t>(from_step, next.job().checkpoint_step());
        }
      }
      if (!event(next)) {
        context.TryCancel();
        reader->Finish();
        return grpc::Status::OK;
      }
    }
    const grpc::Status status = reader->Finish();
    return over ? grpc::Status::OK : status;
  };
  return KeepWatching(*impl_, watch, [&] {
    v1::JobEvent lost;
    lost.mutable_message()->set_text(
        absl::StrCat("connection to the coordinator at ", impl_->address, " lost, trying for ",
                     absl::FormatDuration(impl_->options.watch_retry_for)));
    lost.mutable_message()->set_level(v1::JobMessage::WARNING);
    return event(lost);
  });
}

absl::Status Client::Generate(const v1::GenerateRequest& request,
                              const std::function<bool(const v1::GenerateReply&)>& reply,
                              absl::Duration timeout,
                              const std::function<void(const std::string&)>& warning) {
  grpc::ClientContext context;
  impl_->Prepare(&context, timeout);
  auto reader = impl_->inference->Generate(&context, request);
  if (warning) {
    reader->WaitForInitialMetadata();
    const auto& metadata = context.GetServerInitialMetadata();
    const auto found = metadata.find("espalier-warning");
    if (found != metadata.end()) warning({found->second.data(), found->second.size()});
  }
  v1::GenerateReply next;
  while (reader->Read(&next)) {
    if (!reply(next)) {
      context.TryCancel();
      reader->Finish();
      return absl::OkStatus();
    }
  }
  return impl_->FromGrpc(reader->Finish());
}

absl::StatusOr<v1::LosslessReport> Client::VerifyLossless(
    const v1::VerifyLosslessRequest& request,
    const std::function<bool(const v1::LosslessProgress&)>& progress, Canceller* canceller) {
  grpc::ClientContext context;
  impl_->Prepare(&context, absl::InfiniteDuration());
  const CancellableCall call(canceller, &context);
  auto reader = impl_->inference->VerifyLossless(&context, request);
  std::optional<v1::LosslessReport> report;
  v1::VerifyLosslessReply next;
  while (reader->Read(&next)) {
    if (next.has_report()) report = std::move(*next.mutable_report());
    if (next.has_progress() && !progress(next.progress())) context.TryCancel();
  }
  if (const grpc::Status status = reader->Finish(); !status.ok()) return impl_->FromGrpc(status);
  if (!report) return absl::DataLossError("the coordinator ended the proof without a report");
  return *std::move(report);
}

absl::StatusOr<v1::Artifact> Client::Quantize(const v1::QuantizeRequest& request,
                                              const TransferProgress& progress) {
  v1::QuantizeRequest keyed = request;
  if (keyed.idempotency_key().empty()) keyed.set_idempotency_key(NewIdempotencyKey());
  grpc::ClientContext context;
  impl_->Prepare(&context, absl::InfiniteDuration());
  auto reader = impl_->models->Quantize(&context, keyed);
  std::optional<v1::Artifact> artifact;
  v1::QuantizeReply next;
  while (reader->Read(&next)) {
    if (next.has_artifact()) artifact = std::move(*next.mutable_artifact());
    if (next.has_progress() && next.progress().bytes_total() > 0 && progress) {
      progress(next.progress().bytes_done(), next.progress().bytes_total());
    }
  }
  if (const grpc::Status status = reader->Finish(); !status.ok()) return impl_->FromGrpc(status);
  if (!artifact) return absl::DataLossError("the coordinator ended the call without an artifact");
  return *std::move(artifact);
}

absl::StatusOr<v1::Artifact> Client::Upload(const v1::UploadHeader& header,
                                            const std::vector<LocalFile>& files,
                                            const TransferProgress& progress, Canceller* canceller,
                                            std::string* not_servable) {
  int64_t total = 0;
  for (const LocalFile& file : files) {
    auto size = SizeOfFile(file.path);
    if (!size.ok()) return size.status();
    total += *size;
  }
  grpc::ClientContext context;
  // Long enough for a slow link, short enough for a dead one.
  impl_->Prepare(&context, impl_->options.call_timeout + absl::Seconds(total / (256 << 10)));
  const CancellableCall call(canceller, &context);
  v1::UploadReply reply;
  auto writer = impl_->models->Upload(&context, &reply);
  // A failed write means that the coordinator has already answered; Finish returns its status.
  bool open = true;
  const auto write = [&](const v1::UploadRequest& part) { open = open && writer->Write(part); };

  v1::UploadRequest part;
  *part.mutable_header() = header;
  if (header.idempotency_key().empty())
    part.mutable_header()->set_idempotency_key(NewIdempotencyKey());
  part.mutable_header()->set_files(static_cast<int32_t>(files.size()));
  write(part);
  int64_t done = 0;
  std::string block(kChunkBytes, '\0');
  for (const LocalFile& file : files) {
    std::ifstream in(file.path, std::ios::binary);
    part.mutable_file()->set_name(file.name);
    write(part);
    Sha256 sum;
    while (open && in) {
      in.read(block.data(), static_cast<std::streamsize>(kChunkBytes));
      const auto got = static_cast<size_t>(in.gcount());
      if (got == 0) break;
      sum.Add(absl::string_view(block.data(), got));
      part.mutable_chunk()->assign(block.data(), got);
      write(part);
      done += static_cast<int64_t>(got);
      if (progress) progress(done, total);
    }
    if (open && !in.eof()) {
      context.TryCancel();
      writer->Finish();
      return absl::FailedPreconditionError(absl::StrCat("cannot read ", file.path));
    }
    part.set_sha256(sum.Hex());
    write(part);
  }
  if (open) writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) return impl_->FromGrpc(status);
  if (not_servable != nullptr) *not_servable = reply.not_servable();
  return reply.artifact();
}

absl::StatusOr<int64_t> Client::Backup(const std::string& path,
                                       const std::function<void(int64_t done)>& progress) {
  const std::filesystem::path file(path);
  if (file.filename().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", path, "\" is a folder; name a file in it"));
  }
  if (std::filesystem::exists(file)) {
    return absl::AlreadyExistsError(absl::StrCat(path, " exists; name a new file"));
  }
  grpc::ClientContext context;
  impl_->Prepare(&context, absl::InfiniteDuration());
  auto reader = impl_->cluster->Backup(&context, v1::BackupRequest());
  FolderWriter writer(file.has_parent_path() ? file.parent_path().string() : ".");
  absl::Status failed = writer.Start(file.filename().string());
  if (failed.ok()) failed = writer.Protect();
  int64_t done = 0;
  std::string sum;
  for (v1::BackupReply part; failed.ok() && reader->Read(&part);) {
    if (part.has_sha256()) {
      sum = part.sha256();
      continue;
    }
    failed = writer.Append(part.chunk());
    done += static_cast<int64_t>(part.chunk().size());
    if (progress) progress(done);
  }
  if (!failed.ok()) context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (!failed.ok()) return failed;
  if (!status.ok()) return impl_->FromGrpc(status);
  if (absl::Status s = writer.FinishAs(sum); !s.ok()) return s;
  return done;
}

absl::StatusOr<v1::Artifact> Client::Download(const std::string& name, const std::string& folder,
                                              const TransferProgress& progress) {
  grpc::ClientContext context;
  impl_->Prepare(&context, absl::InfiniteDuration());
  v1::DownloadRequest request;
  request.set_name(name);
  auto reader = impl_->models->Get(&context, request);
  v1::Artifact artifact;
  FolderWriter writer(folder);
  int64_t done = 0;
  absl::Status failed;
  for (v1::DownloadReply part; failed.ok() && reader->Read(&part);) {
    if (part.has_artifact()) {
      artifact = part.artifact();
    } else if (part.has_file()) {
      failed = writer.Start(part.file().name());
    } else {
      failed = writer.Append(part.chunk());
      done += static_cast<int64_t>(part.chunk().size());
      if (progress) progress(done, artifact.bytes());
    }
  }
  if (!failed.ok()) context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (!failed.ok()) return failed;
  if (!status.ok()) return impl_->FromGrpc(status);
  if (absl::Status s = writer.Finish(); !s.ok()) return s;
  if (absl::Status s = writer.Check(artifact); !s.ok()) return s;
  return artifact;
}

}  // namespace espalier
