#include "server/http/response_producer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_join.h"
#include "server/http/json_reader.h"

namespace espalier {
namespace {

using json = nlohmann::ordered_json;

constexpr char kJson[] = "application/json";
constexpr size_t kBytesPerValue = 64;  // that cost as much time as one value

}  // namespace

void StartEventStream(HttpResponder& responder, const char* type) {
  responder.StartStream(200, type, {{"Cache-Control", "no-cache"}});
}

void WriteEvents(const std::vector<std::string>& events, int64_t after, HttpResponder& responder) {
  // Event i has sequence_number i. Writes in one piece, which may be of any size; many pieces would
  // look like a client that does not read.
  std::string all;
  const size_t first = after < 0 ? 0 : static_cast<size_t>(after) + 1;
  for (size_t i = first; i < events.size(); ++i) all += events[i];
  responder.Write(std::move(all));
}

ResponseProducer::ResponseProducer(ResponseProducerOptions options,
                                   std::shared_ptr<HttpResponder> responder)
    : options_(std::move(options)),
      tasks_(options_.serialization_thread),
      formatter_(*options_.formatter),
      watchers_({std::move(responder)}),
      accepted_(!options_.background) {
  if (options_.background) formatter_.Queue();
}

GenerationListener ResponseProducer::Listener() {
  return [self = shared_from_this()](const absl::StatusOr<v1::GenerateReply>& reply, bool last) {
    self->Receive(0, reply, last);
  };
}

BatchListener ResponseProducer::ListenerForPrompts() {
  return [self = shared_from_this()](int prompt, const absl::StatusOr<v1::GenerateReply>& reply,
                                     bool last_of_prompt) {
    self->Receive(prompt, reply, last_of_prompt);
  };
}

void ResponseProducer::Receive(int prompt, const absl::StatusOr<v1::GenerateReply>& reply,
                               bool last_of_prompt) {
  const auto step = [self = shared_from_this()](
                        int prompt, const absl::StatusOr<v1::GenerateReply>& reply, bool last) {
    self->mutex_.AssertHeld();
    self->OnReply(prompt, reply, last);
  };
  // An error is the last call of all.
  const bool last = !reply.ok() || (last_of_prompt && ++prompts_ended_ == options_.prompts);
  const bool large = CountValues(reply, last) > kMaxInlineSize;
  tasks_.Run(large, mutex_, step, prompt, reply, last);
}

size_t ResponseProducer::CountValues(const absl::StatusOr<v1::GenerateReply>& reply, bool last) {
  size_t values = options_.formatter->CountValues(reply.ok() ? &*reply : nullptr, last);
  if (last) values += options_.stored_values;  // `ended` traverses them
  if (!std::exchange(started_, true) || last) values += options_.envelope_bytes / kBytesPerValue;
  return values;
}

void ResponseProducer::Accept(absl::StatusOr<std::shared_ptr<Generation>> submitted) {
  if (!submitted.ok()) return Reject(submitted.status());
  const std::shared_ptr<Generation> generation = *std::move(submitted);
  std::shared_ptr<HttpResponder> client;
  bool over = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!watchers_.empty()) client = watchers_[0];
    SendNewEvents();
    accepted_ = true;
    over = formatter_.over();
    if (!over) generation_ = generation;
    if (options_.background && !streams()) {
      client->Send(200, kJson, openai::Dump(formatter_.Object()));
      watchers_.clear();
    } else if (options_.background) {
      StartEventStream(*client);
      WriteEvents(history_, -1, *client);
      if (over) CloseWatchers();
    }
  }
  if (over) {
    generation->Cancel();  // it has ended or was cancelled
    return;
  }
  if (client == nullptr) return;
  // Without the lock, because the callback may run at once.
  client->OnClose([weak = weak_from_this(), gone = client.get()] {
    if (auto self = weak.lock()) self->OnClientGone(gone);
  });
}

json ResponseProducer::Snapshot() {
  absl::MutexLock lock(&mutex_);
  return formatter_.Object();
}

void ResponseProducer::Watch(std::shared_ptr<HttpResponder> responder, int64_t after) {
  {
    absl::MutexLock lock(&mutex_);
    StartEventStream(*responder);
    WriteEvents(history_, after, *responder);
    if (formatter_.over()) {
      responder->End();
      return;
    }
    watchers_.push_back(responder);
  }
  responder->OnClose([weak = weak_from_this(), gone = responder.get()] {
    if (auto self = weak.lock()) self->OnClientGone(gone);
  });
}

void ResponseProducer::OnClientGone(const HttpResponder* responder) {
  if (concluded_) return;
  {
    absl::MutexLock lock(&mutex_);
    watchers_.erase(std::remove_if(watchers_.begin(), watchers_.end(),
                                   [&](const auto& watcher) { return watcher.get() == responder; }),
                    watchers_.end());
  }
  if (!options_.background) Cancel();
}

void ResponseProducer::Cancel() {
  if (concluded_) return;
  std::shared_ptr<Generation> generation;
  {
    absl::MutexLock lock(&mutex_);
    if (formatter_.over()) return;
    generation = generation_;
    formatter_.Cancel();
    SendNewEvents();
    Conclude(/*keep=*/options_.background);
  }
  // Without the lock: dropping the last reference to an unloaded model joins the engine's thread,
  // which may want the lock.
  if (generation != nullptr) generation->Cancel();
}

void ResponseProducer::Reject(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  // An error may have come before.
  if (options_.background) {
    Refuse(status);
  } else if (!formatter_.over()) {
    Fail(status);
  }
}

void ResponseProducer::Refuse(const absl::Status& status) {
  formatter_.Cancel();
  for (const auto& client : watchers_) SendError(*client, status, options_.error_formatter);
  watchers_.clear();
  Conclude(/*keep=*/false);
}

void ResponseProducer::Fail(const absl::Status& status) {
  if (!options_.background && (!begun_ || !streams())) return Refuse(status);
  formatter_.Fail(openai::FromStatus(status));
  SendNewEvents();
  Conclude(/*keep=*/true);
}

void ResponseProducer::OnReply(int prompt, const absl::StatusOr<v1::GenerateReply>& reply,
                               bool last) {
  if (formatter_.over()) return;
  if (!reply.ok()) return Fail(reply.status());
  if (last && reply->finish_reason() == "cancelled" && !formatter_.shows_cancellation()) {
    // Not by Cancel, after which the formatter would be over.
    return Fail(absl::UnavailableError("the server ended the answer: its model was unloaded"));
  }
  if (!std::exchange(begun_, true)) {
    if (streams() && !options_.background) {
      for (const auto& client : watchers_) StartEventStream(*client, formatter_.stream_type());
    }
    formatter_.Begin();
  }
  formatter_.Add(prompt, *reply);
  if (last) formatter_.Finish(*reply, options_.clock->NowUnixMillis() / 1000);
  SendNewEvents();
  if (last) Conclude(/*keep=*/true);
}

void ResponseProducer::SendNewEvents() {
  std::vector<std::string> events = formatter_.TakeEvents();
  if (events.empty()) return;
  if (accepted_ && !watchers_.empty()) {
    std::string all = absl::StrJoin(events, "");
    for (size_t i = 1; i < watchers_.size(); ++i) watchers_[i]->Write(all);
    watchers_[0]->Write(std::move(all));
  }
  if (options_.background) {
    history_.insert(history_.end(), std::make_move_iterator(events.begin()),
                    std::make_move_iterator(events.end()));
  }
}

void ResponseProducer::Conclude(bool keep) {
  concluded_ = true;
  // The generation refers to this producer, so drop it at the end.
  generation_.reset();
  // Store the response before the client learns of its end: it may fetch it at once.
  if (keep && options_.ended) options_.ended(formatter_.Object(), history_);
  if (accepted_) CloseWatchers();
}

void ResponseProducer::CloseWatchers() {
  for (const auto& watcher : watchers_) {
    if (streams()) {
      watcher->End();
    } else {
      watcher->Send(200, kJson, openai::Dump(formatter_.Object()));
    }
  }
  watchers_.clear();
}

}  // namespace espalier
