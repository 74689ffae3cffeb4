#include "server/http/responses/response_run.h"

#include <algorithm>
#include <utility>

#include "server/http/generate_route.h"
#include "server/http/json_reader.h"

namespace espalier {
namespace {

using json = nlohmann::ordered_json;

constexpr char kJson[] = "application/json";

}  // namespace

void StartEventStream(HttpResponder& responder) {
  responder.StartStream(200, "text/event-stream", {{"Cache-Control", "no-cache"}});
}

void WriteEvents(const std::vector<std::string>& events, int64_t after, HttpResponder& responder) {
  // The i-th one has the sequence_number i.
  for (size_t i = static_cast<size_t>(after + 1); i < events.size(); ++i) {
    responder.Write(events[i]);
  }
}

ResponseRun::ResponseRun(ResponseRunOptions options, std::shared_ptr<HttpResponder> responder)
    : options_(std::move(options)),
      answer_(options_.head, options_.ids, options_.stream ? &events_ : nullptr),
      watchers_({std::move(responder)}),
      accepted_(!options_.background) {
  if (options_.background) answer_.Queue();
}

GenerationListener ResponseRun::Listener() {
  return [self = shared_from_this()](const absl::StatusOr<proto::GenerateReply>& reply, bool last) {
    absl::MutexLock lock(&self->mutex_);
    self->On(reply, last);
  };
}

void ResponseRun::Accept(std::shared_ptr<Generation> generation) {
  std::shared_ptr<HttpResponder> client;
  bool over = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!watchers_.empty()) client = watchers_[0];
    accepted_ = true;
    over = answer_.over();
    if (!over) generation_ = generation;
    if (options_.background && !options_.stream) {
      client->Send(200, kJson, openai::Dump(answer_.Object()));
      watchers_.clear();
    } else if (options_.background) {
      StartEventStream(*client);
      Pass();
      if (over) Release();
    }
  }
  if (over) {
    generation->Cancel();  // whoever wanted it has gone already
    return;
  }
  if (client == nullptr) return;
  // Without the lock: it may be called at once.
  client->OnClose([weak = weak_from_this(), gone = client.get()] {
    if (auto self = weak.lock()) self->GoneAway(gone);
  });
}

json ResponseRun::Snapshot() {
  absl::MutexLock lock(&mutex_);
  return answer_.Object();
}

void ResponseRun::Watch(std::shared_ptr<HttpResponder> responder, int64_t after) {
  {
    absl::MutexLock lock(&mutex_);
    StartEventStream(*responder);
    WriteEvents(history_, after, *responder);
    if (answer_.over()) {
      responder->End();
      return;
    }
    watchers_.push_back(responder);
  }
  responder->OnClose([weak = weak_from_this(), gone = responder.get()] {
    if (auto self = weak.lock()) self->GoneAway(gone);
  });
}

void ResponseRun::GoneAway(const HttpResponder* responder) {
  if (!options_.background) {
    Cancel();
    return;
  }
  absl::MutexLock lock(&mutex_);
  watchers_.erase(std::remove_if(watchers_.begin(), watchers_.end(),
                                 [&](const auto& watcher) { return watcher.get() == responder; }),
                  watchers_.end());
}

void ResponseRun::Cancel() {
  std::shared_ptr<Generation> generation;
  {
    absl::MutexLock lock(&mutex_);
    if (answer_.over()) return;
    generation = generation_;
    answer_.Cancel();
    Pass();
    Settle(/*keep=*/options_.background);
  }
  // Without the lock: whoever lets go of an unloaded model last joins the engine's thread, which
  // may want it.
  if (generation != nullptr) generation->Cancel();
}

void ResponseRun::Fail(const absl::Status& status) {
  // Before the first byte the status line can still tell; afterwards only the response can.
  if (!options_.background && (!begun_ || !options_.stream)) {
    answer_.Cancel();
    SendError(*watchers_[0], status);
    watchers_.clear();
    Settle(/*keep=*/false);
    return;
  }
  answer_.Fail(openai::FromStatus(status));
  Pass();
  Settle(/*keep=*/true);
}

void ResponseRun::On(const absl::StatusOr<proto::GenerateReply>& reply, bool last) {
  if (answer_.over()) return;
  if (!reply.ok()) return Fail(reply.status());
  if (!std::exchange(begun_, true)) {
    if (options_.stream && !options_.background) StartEventStream(*watchers_[0]);
    answer_.Begin();
  }
  answer_.Add(*reply);
  if (!reply->finish_reason().empty()) finish_reason_ = reply->finish_reason();
  if (last) {
    answer_.Finish(finish_reason_, reply->usage(), options_.clock->NowUnixMillis() / 1000);
  }
  Pass();
  if (last) Settle(/*keep=*/true);
}

void ResponseRun::Pass() {
  if (!accepted_) return;
  for (std::string& event : events_) {
    for (const auto& watcher : watchers_) watcher->Write(event);
    if (options_.background) history_.push_back(std::move(event));
  }
  events_.clear();
}

void ResponseRun::Settle(bool keep) {
  // What runs holds this response, so at its end the response lets go of what runs.
  generation_.reset();
  if (keep && options_.store != nullptr) {
    std::vector<std::string> events = history_;
    events.insert(events.end(), events_.begin(), events_.end());  // if nobody has accepted it yet
    StoredResponse stored{options_.owner, answer_.Object(), options_.input, std::move(events)};
    if (options_.background) {
      options_.store->End(options_.head.id, std::move(stored));
    } else {
      options_.store->Put(options_.head.id, std::move(stored));
    }
  }
  if (accepted_) Release();
}

void ResponseRun::Release() {
  for (const auto& watcher : watchers_) {
    if (options_.stream) {
      watcher->End();
    } else {
      watcher->Send(200, kJson, openai::Dump(answer_.Object()));
    }
  }
  watchers_.clear();
}

}  // namespace espalier
