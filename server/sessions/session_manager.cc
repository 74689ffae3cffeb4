#include "server/sessions/session_manager.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/random_id.h"
#include "ops/graph/graph_proto.h"
#include "planner/lowering/lower_session.h"
#include "server/jobs/stored_values.h"
#include "storage/data_folder_names.h"

namespace espalier {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr double kDefaultGraceSeconds = 30, kMaxSeconds = 3600;
constexpr char kPrefix[] = "session-";

absl::StatusOr<absl::Duration> Seconds(const char* field, double seconds, double otherwise) {
  if (seconds >= 0 && seconds <= kMaxSeconds)
    return absl::Seconds(seconds == 0 ? otherwise : seconds);
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", seconds, "; accepted: 0 (", otherwise, ") to ", kMaxSeconds));
}

// Removes what sessions of an earlier coordinator left in `folder`.
void RemoveSessions(CheckpointStore& store, const std::string& folder) {
  const absl::StatusOr<std::vector<ObjectReader::Object>> objects = store.List(folder);
  if (!objects.ok()) return;
  const size_t skip = folder.empty() ? 0 : folder.size() + 1;
  std::set<std::string> left;
  for (const ObjectReader::Object& object : *objects) {
    const std::string name = object.name.substr(0, object.name.find('/', skip));
    if (absl::StartsWith(name.substr(skip), kPrefix)) left.insert(name);
  }
  for (const std::string& name : left) store.Delete(name).IgnoreError();
}

}  // namespace

absl::Status SessionNotFound(const std::string& session_id) {
  return absl::NotFoundError(absl::StrCat("there is no session '", session_id.substr(0, 100),
                                          "' (any more); open a new one"));
}

SessionManager::SessionManager(SessionManagerOptions options)
    : options_(std::move(options)),
      tools_{options_.registry, options_.artifacts, options_.files, options_.checkpoints} {}

SessionManager::~SessionManager() { Stop(); }

void SessionManager::Start() {
  RemoveSessions(*options_.checkpoints, "");
  RemoveSessions(*options_.data_folder, kCheckpointsFolder);
  watch_ = std::thread([this] { Watch(); });
}

void SessionManager::Stop() {
  std::map<std::string, std::shared_ptr<Session>> sessions;
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    stopped_.SignalAll();
    sessions = std::move(sessions_);
    sessions_.clear();
  }
  if (watch_.joinable()) watch_.join();
  for (const auto& [id, session] : sessions) session->Close();
}

void SessionManager::Watch() {
  while (true) {
    std::vector<std::shared_ptr<Session>> all, over;
    {
      absl::MutexLock lock(&mutex_);
      if (!stop_) stopped_.WaitWithTimeout(&mutex_, kTick);
      if (stop_) return;
      for (auto entry = sessions_.begin(); entry != sessions_.end();) {
        if (entry->second->Abandoned(absl::Now())) {
          over.push_back(entry->second);
          entry = sessions_.erase(entry);
        } else {
          all.push_back(entry->second);
          ++entry;
        }
      }
    }
    for (const std::shared_ptr<Session>& session : over) {
      spdlog::info("session {} ends: it had no client for {}", session->facts().id,
                   absl::FormatDuration(session->facts().grace));
      session->Close();
    }
    for (const std::shared_ptr<Session>& session : all) {
      session->ranks().CheckLeases();
      // A session that has failed keeps no worker; its client learns why.
      if (!session->ranks().broken().empty()) session->ranks().Stop();
    }
  }
}

absl::StatusOr<std::shared_ptr<Session>> SessionManager::Find(const std::string& session_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = sessions_.find(session_id);
  if (found == sessions_.end()) return SessionNotFound(session_id);
  return found->second;
}

std::optional<std::string> SessionManager::OwnerOf(const std::string& session_id) const {
  const absl::StatusOr<std::shared_ptr<Session>> session = Find(session_id);
  if (!session.ok()) return std::nullopt;
  return (*session)->facts().owner;
}

std::vector<v1::SessionInfo> SessionManager::List() const {
  std::vector<std::shared_ptr<Session>> sessions;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, session] : sessions_) sessions.push_back(session);
  }
  std::vector<v1::SessionInfo> list;
  for (const std::shared_ptr<Session>& session : sessions) list.push_back(session->Info());
  return list;
}

absl::Status SessionManager::Close(const std::string& session_id) {
  std::shared_ptr<Session> session;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = sessions_.find(session_id);
    if (found == sessions_.end()) return absl::OkStatus();
    session = std::move(found->second);
    sessions_.erase(found);
  }
  session->Close();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Member>> SessionManager::ChooseWorkers(
    const v1::OpenSessionRequest& request, const std::function<bool()>& cancelled) const {
  const v1::SearchOptions& search = request.spec().search();
  const bool imported = search.strategy() == v1::SearchOptions::IMPORTED;
  size_t planned = static_cast<size_t>(std::max(0, search.pipeline_stages()));
  if (search.has_imported()) planned = static_cast<size_t>(search.imported().devices_size());
  const auto asked = static_cast<size_t>(std::max(0, request.spec().min_devices()));
  const size_t least = std::max({size_t{1}, planned, asked});
  absl::StatusOr<absl::Duration> wait = Seconds("wait_seconds", request.wait_seconds(), 0);
  if (!wait.ok()) return wait.status();
  const absl::Time deadline = absl::Now() + *wait;
  while (true) {
    std::vector<Member> idle = options_.cluster.workers->Idle();
    if (idle.size() >= least) {
      size_t most = idle.size();
      if (search.max_devices() > 0) most = static_cast<size_t>(search.max_devices());
      if (search.strategy() == v1::SearchOptions::SINGLE_DEVICE) most = 1;
      if (imported) most = planned;
      if (idle.size() > most) idle.resize(std::max(most, size_t{1}));
      return idle;
    }
    if (cancelled()) return absl::CancelledError("the client is gone");
    if (absl::Now() >= deadline) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the session takes ", least, least == 1 ? " worker" : " workers", "; ", idle.size(),
          " of ", options_.cluster.workers->Live(),
          " are idle: wait for them (wait_seconds), end what uses them, or start more"));
    }
    absl::SleepFor(kTick);
  }
}

absl::StatusOr<v1::Plan> SessionManager::MakePlan(const PreparedSession& prepared,
                                                  SessionRanks& ranks,
                                                  const std::function<bool()>& cancelled) {
  CalibratedPlanner::Request request;
  request.graph = &prepared.job.graph;
  request.batch_size = prepared.spec.batch_size();
  for (size_t r = 0; r < ranks.size(); ++r) {
    const v1::Device& device = ranks.members()[r].device;
    *request.machine.devices.insert(request.machine.devices.end(), device);
    request.measure_on.emplace(device.model(), &ranks.client(r));
  }
  request.machine.communication = options_.planner->Communication(request.machine.devices);
  request.machine.link = options_.cluster.workers->MeasuredLink();
  if (request.machine.link.bandwidth() <= 0) request.machine.link = DefaultLink();
  request.optimizer = prepared.job.optimizer;
  request.search = prepared.spec.search();
  request.stop = cancelled;
  return options_.planner->Make(request);
}

absl::StatusOr<SessionTensors> SessionManager::Load(const v1::Plan& plan, const std::string& folder,
                                                    PreparedSession* prepared,
                                                    SessionRanks& ranks) {
  LoweringOptions lowering;
  lowering.optimizer = prepared->job.optimizer;
  lowering.seed = prepared->spec.seed();
  lowering.columns = prepared->job.columns;
  lowering.max_literal_bytes = kMaxLiteralBytes;
  lowering.workspace = options_.planner->workspace();
  absl::StatusOr<LoweredSession> lowered =
      LowerSession(*options_.registry, prepared->job.graph, plan, lowering);
  if (!lowered.ok()) return lowered.status();
  LoweredPlan& programs = lowered->programs;
  if (programs.training.size() != ranks.size() || lowered->borders.size() != ranks.size()) {
    return absl::InternalError(absl::StrCat("the plan was lowered to ", programs.training.size(),
                                            " programs for ", ranks.size(), " workers"));
  }
  if (prepared->job.init_folder.has_value()) prepared->job.initial_values.clear();
  absl::StatusOr<StoredValues> stored = StoredValues::Write(
      *options_.data_folder, absl::StrCat(kCheckpointsFolder, "/", folder, "/values"), "session",
      prepared->job.graph, prepared->job.initial_values);
  prepared->job.initial_values.clear();
  if (!stored.ok()) return stored.status();
  std::vector<v1::LoadProgramRequest> requests(ranks.size());
  for (size_t r = 0; r < requests.size(); ++r) {
    v1::LoadProgramRequest& request = requests[r];
    *request.mutable_program() = std::move(programs.training[r]);
    *request.mutable_evaluation() = std::move(programs.evaluation[r]);
    if (!prepared->spec.dataset().uri().empty()) {
      *request.mutable_dataset() = prepared->spec.dataset();
    }
    request.set_batch_size(prepared->spec.batch_size());
    if (prepared->job.init_folder.has_value()) {
      request.set_init_folder(options_.data_folder->NameOf(prepared->job.init_folder->path()));
    }
    request.set_values_folder(stored->folder());
    request.set_pad_evaluation(prepared->job.unweighted.empty());
    const PassBorders& borders = lowered->borders[r];
    request.mutable_session()->set_forward_end(borders.forward_end);
    request.mutable_session()->set_backward_end(borders.backward_end);
    request.mutable_session()->set_store_end(borders.store_end);
    request.mutable_session()->set_accumulate_end(borders.accumulate_end);
  }
  absl::StatusOr<std::vector<v1::LoadProgramReply>> loaded = ranks.Load(std::move(requests));
  stored->Remove();  // all ranks have read them, or will not
  if (!loaded.ok()) return loaded.status();
  return SessionTensors::Create(*loaded);
}

absl::Status SessionManager::Open(const v1::OpenSessionRequest& request, const std::string& owner,
                                  const std::function<bool()>& cancelled,
                                  v1::OpenSessionReply* reply) {
  absl::StatusOr<absl::Duration> grace =
      Seconds("grace_seconds", request.grace_seconds(), kDefaultGraceSeconds);
  if (!grace.ok()) return grace.status();
  absl::StatusOr<PreparedSession> prepared = PrepareSession(
      *options_.registry, options_.artifacts, *options_.dataset_roots, request, owner);
  if (!prepared.ok()) return prepared.status();
  absl::StatusOr<std::string> random = RandomId();
  if (!random.ok()) return random.status();
  const std::string id = absl::StrCat(kPrefix, *random);
  absl::StatusOr<std::vector<Member>> members = ChooseWorkers(request, cancelled);
  if (!members.ok()) return members.status();
  absl::StatusOr<std::unique_ptr<SessionRanks>> ranks =
      SessionRanks::Create(options_.cluster, id, *std::move(members));
  if (!ranks.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("another job took the workers: ", ranks.status().message(), "; try again"));
  }
  absl::Cleanup remove = [&] { options_.checkpoints->Delete(id).IgnoreError(); };
  absl::StatusOr<v1::Plan> plan = MakePlan(*prepared, **ranks, cancelled);
  if (!plan.ok()) return plan.status();
  const std::string fingerprint = plan->graph_fingerprint();
  absl::StatusOr<SessionTensors> tensors = Load(*plan, id, &*prepared, **ranks);
  if (!tensors.ok()) return tensors.status();
  reply->set_session_id(id);
  for (v1::SessionTensor& tensor : tensors->List()) *reply->add_tensors() = std::move(tensor);
  for (const auto& [name, type] : prepared->columns) {
    v1::TensorType& column = (*reply->mutable_columns())[name];
    column.set_dtype(ToProto(type.dtype));
    for (const int64_t dim : type.dims) column.add_dims(dim);
  }
  reply->set_parameters(prepared->job.parameters);
  reply->set_examples(prepared->training_examples);
  reply->mutable_notes()->Assign(prepared->job.notes.begin(), prepared->job.notes.end());
  *reply->mutable_plan() = *std::move(plan);
  // Only the model is needed from here on.
  prepared->job.graph = Graph();
  auto session = std::make_shared<Session>(
      SessionFacts{id, owner, options_.clock->NowUnixMillis(), *grace}, tools_,
      *std::move(prepared), *std::move(ranks), *std::move(tensors), fingerprint, id);
  absl::MutexLock lock(&mutex_);
  if (stop_) return absl::UnavailableError("the coordinator is going down; try again");
  spdlog::info("session {} opens on {} workers", id, session->ranks().size());
  sessions_[id] = std::move(session);
  return absl::OkStatus();
}

}  // namespace espalier
