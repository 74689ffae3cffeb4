#include "server/inference/prediction/predictor.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"

namespace espalier {
namespace {

// Adds one to each byte. Passes block while it is held.
class AddOne : public BatchRunner {
 public:
  struct Log {
    absl::Mutex mutex;
    bool held = false;
    absl::Status next;            // of the next pass
    char bad = '\0';              // passes with this byte fail
    std::vector<int64_t> passes;  // examples of each
  };

  AddOne(int64_t max_batch, std::shared_ptr<Log> log)
      : max_batch_(max_batch), log_(std::move(log)) {
    signature_.inputs = {{"x", {DType::kU8, {2}}}};
    signature_.outputs = {{"y", {DType::kU8, {2}}}};
  }
  const GraphSignature& signature() const override { return signature_; }
  int64_t max_batch() const override { return max_batch_; }

  absl::Status Run(const std::vector<BatchPart>& parts) override {
    absl::MutexLock lock(&log_->mutex);
    int64_t examples = 0;
    for (const BatchPart& part : parts) examples += part.examples;
    log_->passes.push_back(examples);
    const auto passes = [this] { return !log_->held; };
    log_->mutex.Await(absl::Condition(&passes));
    if (!log_->next.ok()) return std::exchange(log_->next, absl::OkStatus());
    for (const BatchPart& part : parts) {
      const absl::string_view given((*part.inputs)[0]);
      if (absl::StrContains(given.substr(static_cast<size_t>(2 * part.first),
                                         static_cast<size_t>(2 * part.examples)),
                            log_->bad)) {
        return absl::InvalidArgumentError("a bad byte");
      }
    }
    for (const BatchPart& part : parts) {
      for (int64_t i = 2 * part.first; i < 2 * (part.first + part.examples); ++i) {
        (*part.outputs)[0][static_cast<size_t>(i)] =
            static_cast<char>((*part.inputs)[0][static_cast<size_t>(i)] + 1);
      }
    }
    return absl::OkStatus();
  }

 private:
  const int64_t max_batch_;
  const std::shared_ptr<Log> log_;
  GraphSignature signature_;
};

struct Answer {
  absl::Notification over;
  absl::StatusOr<Predictor::Outputs> outputs;
};

class PredictorTest : public ::testing::Test {
 protected:
  void Make(int64_t max_batch, PredictorOptions options = {}) {
    options.clock = &clock_;
    predictor_ = std::make_unique<Predictor>(std::make_unique<AddOne>(max_batch, log_), options);
  }
  std::shared_ptr<Answer> Ask(const std::string& input,
                              absl::Time deadline = absl::InfiniteFuture()) {
    auto answer = std::make_shared<Answer>();
    predictor_->Predict(static_cast<int64_t>(input.size()) / 2, {input}, deadline,
                        [answer](absl::StatusOr<Predictor::Outputs> outputs) {
                          answer->outputs = std::move(outputs);
                          answer->over.Notify();
                        });
    return answer;
  }
  static std::string Read(Answer& answer) {
    answer.over.WaitForNotification();
    return answer.outputs.ok() ? answer.outputs->at(0) : answer.outputs.status().ToString();
  }
  void Hold(bool held) {
    absl::MutexLock lock(&log_->mutex);
    log_->held = held;
  }
  void AwaitPasses(size_t passes) {
    absl::MutexLock lock(&log_->mutex);
    const auto begun = [&] { return log_->passes.size() >= passes; };
    log_->mutex.Await(absl::Condition(&begun));
  }
  std::vector<int64_t> Passes() {
    absl::MutexLock lock(&log_->mutex);
    return log_->passes;
  }

  SystemClock clock_;
  std::shared_ptr<AddOne::Log> log_ = std::make_shared<AddOne::Log>();
  std::unique_ptr<Predictor> predictor_;
};

TEST_F(PredictorTest, WhatComesDuringAPassSharesTheNextOne) {
  Make(4);
  Hold(true);
  const auto first = Ask("ab");
  AwaitPasses(1);
  const auto second = Ask("cdef"), third = Ask("gh"), fourth = Ask("ijkl");
  Hold(false);
  EXPECT_EQ(Read(*first), "bc");
  EXPECT_EQ(Read(*second), "defg");
  EXPECT_EQ(Read(*third), "hi");
  EXPECT_EQ(Read(*fourth), "jklm");
  EXPECT_EQ(Passes(), (std::vector<int64_t>{1, 4, 1}));
  const PredictorStatistics statistics = predictor_->statistics();
  EXPECT_EQ(statistics.requests, 4);
  EXPECT_EQ(statistics.examples, 6);
  EXPECT_EQ(statistics.passes, 3);
}

TEST_F(PredictorTest, WhatIsWrongWithOneRequestDoesNotFailThoseOfItsPass) {
  Make(4);
  log_->bad = 'z';
  Hold(true);
  const auto first = Ask("ab");
  AwaitPasses(1);
  const auto second = Ask("cd"), bad = Ask("ez"), third = Ask("ghij");
  Hold(false);
  EXPECT_EQ(Read(*first), "bc");
  EXPECT_EQ(Read(*second), "de");
  EXPECT_EQ(Read(*bad), "INVALID_ARGUMENT: a bad byte");
  EXPECT_EQ(Read(*third), "hijk");
  EXPECT_EQ(Passes(), (std::vector<int64_t>{1, 4, 1, 1, 2})) << "each alone once more";
  const PredictorStatistics statistics = predictor_->statistics();
  EXPECT_EQ(statistics.requests, 3);
  EXPECT_EQ(statistics.failures, 1);
  EXPECT_EQ(statistics.examples, 4) << "of passes that succeeded";
  EXPECT_EQ(statistics.passes, 3);
}

TEST_F(PredictorTest, ARequestMayBeLargerThanABatch) {
  Make(2);
  EXPECT_EQ(Read(*Ask("abcdefghij")), "bcdefghijk");
  EXPECT_EQ(Passes(), (std::vector<int64_t>{2, 2, 1}));
}

TEST_F(PredictorTest, ARequestWaitsForOthersUpToTheDelay) {
  Make(4, {.max_delay = absl::Milliseconds(50)});
  const absl::Time start = clock_.Now();
  EXPECT_EQ(Read(*Ask("ab")), "bc");
  EXPECT_GE(clock_.Now() - start, absl::Milliseconds(50));
  const auto one = Ask("ab"), other = Ask("cdefgh");
  EXPECT_EQ(Read(*one), "bc");
  EXPECT_EQ(Read(*other), "defghi");
  EXPECT_EQ(Passes(), (std::vector<int64_t>{1, 4}));
}

TEST_F(PredictorTest, AFailedPassIsTheErrorOfItsRequestsAlone) {
  Make(4);
  log_->next = absl::ResourceExhaustedError("no memory");
  EXPECT_EQ(Read(*Ask("ab")), "RESOURCE_EXHAUSTED: no memory");
  EXPECT_EQ(Read(*Ask("ab")), "bc");
  EXPECT_EQ(predictor_->statistics().failures, 1);
}

TEST_F(PredictorTest, MoreRequestsThanTheQueueHoldsAreRefused) {
  Make(1, {.max_queue = 2});
  Hold(true);
  const auto first = Ask("ab"), second = Ask("cd");
  EXPECT_TRUE(absl::StartsWith(Read(*Ask("ef")), "RESOURCE_EXHAUSTED"));
  Hold(false);
  EXPECT_EQ(Read(*first), "bc");
  EXPECT_EQ(Read(*second), "de");
}

TEST_F(PredictorTest, RequestsOfTooManyBytesAreRefused) {
  Make(1, {.max_queue_bytes = 12});
  EXPECT_TRUE(absl::StartsWith(Read(*Ask("abcdefgh")), "INVALID_ARGUMENT"));  // never fits
  Hold(true);
  const auto first = Ask("abcd");
  EXPECT_TRUE(absl::StartsWith(Read(*Ask("abcd")), "RESOURCE_EXHAUSTED"));
  const auto second = Ask("ab");
  Hold(false);
  EXPECT_EQ(Read(*first), "bcde");
  EXPECT_EQ(Read(*second), "bc");
  EXPECT_EQ(Read(*Ask("abcd")), "bcde");  // there is room again
}

TEST_F(PredictorTest, ARequestThatWaitsBeyondItsDeadlineIsNotComputed) {
  Make(1);
  Hold(true);
  const auto first = Ask("ab");
  AwaitPasses(1);
  const auto late = Ask("cd", clock_.Now() - absl::Seconds(1));
  Hold(false);
  EXPECT_TRUE(absl::StartsWith(Read(*late), "DEADLINE_EXCEEDED"));
  EXPECT_EQ(Read(*first), "bc");
  EXPECT_EQ(Passes(), (std::vector<int64_t>{1}));
}

TEST_F(PredictorTest, TheEndAnswersAllRequests) {
  Make(1);
  Hold(true);
  const auto running = Ask("ab");
  AwaitPasses(1);
  const auto waiting = Ask("cd");
  predictor_->End(absl::UnavailableError("over"));
  EXPECT_EQ(Read(*waiting), "UNAVAILABLE: over");
  Hold(false);
  EXPECT_EQ(Read(*running), "UNAVAILABLE: over");
  EXPECT_EQ(Read(*Ask("ef")), "UNAVAILABLE: over");
}

}  // namespace
}  // namespace espalier
