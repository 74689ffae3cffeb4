#include "server/inference/prediction/predictor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

absl::Status Late() {
  return absl::DeadlineExceededError("the deadline of the request passed before it was computed");
}

}  // namespace

Predictor::Predictor(std::unique_ptr<BatchRunner> runner, const PredictorOptions& options)
    : runner_(std::move(runner)),
      options_(options),
      queue_({.max_batch = runner_->max_batch(), .max_delay = options.max_delay}) {
  thread_ = std::thread([this] { Work(); });
}

Predictor::~Predictor() {
  End(absl::UnavailableError("the model is no longer served"));
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    changed_.Signal();
  }
  thread_.join();
}

absl::Status Predictor::Admit(int64_t bytes) const {
  if (!ended_.ok()) return ended_;
  if (bytes > options_.max_queue_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the inputs and outputs of this request have ", bytes, " bytes, at most ",
                     options_.max_queue_bytes, " are held: give fewer examples"));
  }
  if (static_cast<int>(requests_.size()) >= options_.max_queue) {
    return absl::ResourceExhaustedError(
        absl::StrCat(requests_.size(),
                     " requests to this model wait, which is the most (max_queue); try again"));
  }
  if (bytes_ + bytes > options_.max_queue_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the inputs and outputs of this request have ", bytes, " bytes, those of the ",
                     requests_.size(), " that wait ", bytes_, "; ", options_.max_queue_bytes,
                     " are held: try again"));
  }
  return absl::OkStatus();
}

void Predictor::Predict(int64_t examples, std::vector<std::string> inputs, absl::Time deadline,
                        Done done) {
  auto request = std::make_unique<Request>();
  for (const std::string& input : inputs) request->bytes += static_cast<int64_t>(input.size());
  for (const GraphTensorType& output : signature().outputs) {
    request->bytes += examples * output.example.bytes();
  }
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    status = Admit(request->bytes);
    if (status.ok()) {
      const absl::Time now = options_.clock->Now();
      request->inputs = std::move(inputs);
      request->left = examples;
      request->arrival = now;
      request->deadline = deadline;
      request->done = std::move(done);
      for (const GraphTensorType& output : signature().outputs) {
        request->outputs.emplace_back(static_cast<size_t>(examples * output.example.bytes()), '\0');
      }
      bytes_ += request->bytes;
      requests_[++last_id_] = std::move(request);
      queue_.Add(last_id_, examples, now);
      changed_.Signal();
    }
  }
  if (!status.ok()) done(status);
}

std::unique_ptr<Predictor::Request> Predictor::Close(uint64_t id) {
  const auto found = requests_.find(id);
  std::unique_ptr<Request> request = std::move(found->second);
  requests_.erase(found);
  queue_.Remove(id);
  bytes_ -= request->bytes;
  return request;
}

void Predictor::CountAnswer(const Request& request, absl::Time now) {
  ++statistics_.requests;
  statistics_.queue_seconds += absl::ToDoubleSeconds(request.started - request.arrival);
  statistics_.request_seconds += absl::ToDoubleSeconds(now - request.arrival);
  statistics_.last_answer = now;
}

void Predictor::CountFailure(const Request& request, absl::Time now) {
  ++statistics_.failures;
  statistics_.failure_seconds += absl::ToDoubleSeconds(now - request.arrival);
}

std::vector<std::unique_ptr<Predictor::Request>> Predictor::TakeLate(absl::Time now) {
  std::vector<uint64_t> late;
  for (const auto& [id, request] : requests_) {
    if (request->deadline <= now) late.push_back(id);
  }
  std::vector<std::unique_ptr<Request>> closed;
  for (const uint64_t id : late) {
    closed.push_back(Close(id));
    CountFailure(*closed.back(), now);
  }
  return closed;
}

absl::Time Predictor::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, request] : requests_) next = std::min(next, request->deadline);
  return next;
}

void Predictor::Work() {
  while (true) {
    std::vector<BatchQueue::Part> parts;
    std::vector<std::unique_ptr<Request>> late;
    {
      absl::MutexLock lock(&mutex_);
      while (!stop_) {
        const absl::Time now = options_.clock->Now();
        late = TakeLate(now);
        if (late.empty()) parts = queue_.Take(now);
        if (!late.empty() || !parts.empty()) break;
        changed_.WaitWithTimeout(&mutex_, std::min(queue_.Due(), NextDeadline()) - now);
      }
      if (stop_ && late.empty() && parts.empty()) return;
      for (const BatchQueue::Part& part : parts) requests_.at(part.request)->running = true;
    }
    for (const std::unique_ptr<Request>& request : late) request->done(Late());
    if (!parts.empty()) RunPass(parts);
  }
}

absl::Status Predictor::Compute(const std::vector<BatchPart>& parts) {
  const absl::Time start = options_.clock->Now();
  const absl::Status ran = runner_->Run(parts);
  if (!ran.ok()) return ran;
  const double seconds = absl::ToDoubleSeconds(options_.clock->Now() - start);
  int64_t examples = 0;
  for (const BatchPart& part : parts) examples += part.examples;
  absl::MutexLock lock(&mutex_);
  ++statistics_.passes;
  statistics_.examples += examples;
  statistics_.pass_seconds += seconds;
  PredictorStatistics::Passes& passes = statistics_.passes_of_size[examples];
  ++passes.count;
  passes.seconds += seconds;
  return absl::OkStatus();
}

void Predictor::RunPass(const std::vector<BatchQueue::Part>& parts) {
  const absl::Time start = options_.clock->Now();
  std::vector<BatchPart> batch;
  {
    absl::MutexLock lock(&mutex_);
    for (const BatchQueue::Part& part : parts) {
      Request& request = *requests_.at(part.request);
      request.started = std::min(request.started, start);
      batch.push_back({&request.inputs, &request.outputs, part.first, part.examples});
    }
  }
  // Requests of a pass stay in the table until it is over.
  std::vector<absl::Status> ran(parts.size(), Compute(batch));
  if (parts.size() > 1 && !ran[0].ok()) {
    // What is wrong with one request must not fail the others.
    for (size_t p = 0; p < parts.size(); ++p) ran[p] = Compute({batch[p]});
  }
  const absl::Time end = options_.clock->Now();
  std::vector<std::unique_ptr<Request>> over;
  {
    absl::MutexLock lock(&mutex_);
    for (size_t p = 0; p < parts.size(); ++p) {
      Request& request = *requests_.at(parts[p].request);
      request.running = false;
      request.left -= parts[p].examples;
      if (request.ended.ok()) request.ended = ran[p];
      if (request.left > 0 && request.ended.ok()) continue;
      over.push_back(Close(parts[p].request));
      if (over.back()->ended.ok()) {
        CountAnswer(*over.back(), end);
      } else {
        CountFailure(*over.back(), end);
      }
    }
  }
  for (const std::unique_ptr<Request>& request : over) {
    if (request->ended.ok()) {
      request->done(std::move(request->outputs));
    } else {
      request->done(request->ended);
    }
  }
}

void Predictor::End(const absl::Status& why) {
  std::vector<std::unique_ptr<Request>> over;
  {
    absl::MutexLock lock(&mutex_);
    ended_ = why;
    std::vector<uint64_t> waiting;
    for (const auto& [id, request] : requests_) {
      if (request->running) {
        request->ended = why;
      } else {
        waiting.push_back(id);
      }
    }
    const absl::Time now = options_.clock->Now();
    for (const uint64_t id : waiting) {
      over.push_back(Close(id));
      CountFailure(*over.back(), now);
    }
  }
  for (const std::unique_ptr<Request>& request : over) request->done(why);
}

PredictorStatistics Predictor::statistics() const {
  absl::MutexLock lock(&mutex_);
  PredictorStatistics statistics = statistics_;
  statistics.open = static_cast<int>(requests_.size());
  return statistics;
}

}  // namespace espalier
