#include "client/cli/history/mlflow_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/flags.h"
#include "client/cli/history/exporters.h"
#include "client/cli/history/sample_rows.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Answers one request after another with the next of its answers, and keeps the requests.
class FakeMlflow {
 public:
  struct Answer {
    int status = 200;
    std::string body = "{}";
  };
  explicit FakeMlflow(std::vector<Answer> answers) : answers_(std::move(answers)) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    socklen_t size = sizeof address;
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~FakeMlflow() { Stop(); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  std::string url() const { return absl::StrCat("http://", address()); }
  // Heads and bodies. No requests are served any more.
  std::vector<std::pair<std::string, nlohmann::json>> requests() {
    Stop();
    return requests_;
  }

 private:
  void Stop() {
    if (!thread_.joinable()) return;
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  void Serve() {
    for (size_t i = 0;; ++i) {
      const int fd = accept(listener_, nullptr, nullptr);
      if (fd < 0) return;
      std::string text;
      size_t head = std::string::npos;
      size_t length = 0;
      char block[4096];
      while (head == std::string::npos || text.size() < head + 4 + length) {
        const ssize_t n = read(fd, block, sizeof block);
        if (n <= 0) break;
        text.append(block, static_cast<size_t>(n));
        head = text.find("\r\n\r\n");
        const size_t at = text.find("Content-Length: ");
        if (head != std::string::npos && at < head) {
          length = std::stoul(text.substr(at + 16, text.find("\r\n", at) - at - 16));
        }
      }
      requests_.emplace_back(text.substr(0, head),
                             nlohmann::json::parse(text.substr(head + 4), nullptr, false));
      const Answer answer = i < answers_.size() ? answers_[i] : Answer{500, "no more answers"};
      const std::string reply =
          absl::StrCat("HTTP/1.1 ", answer.status, " X\r\nContent-Length: ", answer.body.size(),
                       "\r\n\r\n", answer.body);
      send(fd, reply.data(), reply.size(), MSG_NOSIGNAL);
      close(fd);
    }
  }

  const std::vector<Answer> answers_;
  std::vector<std::pair<std::string, nlohmann::json>> requests_;
  int listener_ = -1, port_ = 0;
  std::thread thread_;
};

const char* NoVariable(const char*) { return nullptr; }

class MlflowTest : public ::testing::Test {
 protected:
  absl::Status Export(const std::string& url, const std::vector<v1::HistoryRow>& rows,
                      const std::function<const char*(const char*)>& getenv = NoVariable) {
    const ExportEnvironment environment = {
        .getenv = getenv, .sleep = [this](absl::Duration pause) { pauses_.push_back(pause); }};
    for (const ExportFormat& format : ExportFormats()) {
      if (format.flag.name != "mlflow") continue;
      auto exporter = format.make(environment, url);
      if (!exporter.ok()) return exporter.status();
      for (const v1::HistoryRow& row : rows) {
        if (absl::Status s = (*exporter)->Add(row); !s.ok()) return s;
      }
      absl::Status status = (*exporter)->Finish();
      notes_ = (*exporter)->Notes();
      return status;
    }
    return absl::InternalError("no such format");
  }
  std::vector<absl::Duration> pauses_;
  std::vector<std::string> notes_;
};

const FakeMlflow::Answer kNoExperiment = {
    404, R"({"error_code":"RESOURCE_DOES_NOT_EXIST","message":"none"})"};
const FakeMlflow::Answer kExperiment = {
    200, R"({"experiment":{"experiment_id":"7","lifecycle_stage":"active"}})"};
const FakeMlflow::Answer kNewRun = {200, R"({"run":{"info":{"run_id":"r1"}}})"};

TEST_F(MlflowTest, VersionsBecomeRunsWithMetricsInBatches) {
  std::vector<v1::HistoryRow> rows;
  for (int step = 0; step < 1003; ++step) rows.push_back(ScalarRow(1, step, "loss", step * 0.1));
  rows.push_back(ScalarRow(1, 5, "grad(w)", NAN, "norm"));
  rows.push_back(HistogramRow(1, 5, "w", 0, 1, {1}));
  rows.push_back(ScalarRow(2, 0, "loss", 3));
  FakeMlflow server({kNoExperiment,
                     {200, R"({"experiment_id":"7"})"},
                     {200, "{}"},
                     kNewRun,
                     {200, "{}"},
                     {200, "{}"},
                     {200, "{}"},
                     {200, R"({"runs":[{"info":{"run_id":"r2"}}]})"},
                     {200, "{}"}});
  const absl::Status status = Export(server.url() + "/prefix/", rows);
  EXPECT_TRUE(status.ok()) << status;
  const auto requests = server.requests();
  std::vector<std::string> lines;
  for (const auto& [head, body] : requests) lines.push_back(head.substr(0, head.find(" HTTP")));
  const std::string api = "/prefix/api/2.0/mlflow/";
  EXPECT_THAT(lines,
              ElementsAre("GET " + api + "experiments/get-by-name?experiment_name=lm",
                          "POST " + api + "experiments/create", "POST " + api + "runs/search",
                          "POST " + api + "runs/create", "POST " + api + "runs/log-batch",
                          "POST " + api + "runs/log-batch", "POST " + api + "runs/update",
                          "POST " + api + "runs/search", "POST " + api + "runs/log-batch"));
  EXPECT_EQ(requests[2].second["filter"], "tags.`espalier.job` = 'job-1'");
  EXPECT_EQ(requests[3].second["run_name"], "lm@1");
  EXPECT_EQ(requests[3].second["start_time"], 1'700'000'000'000);
  ASSERT_EQ(requests[4].second["metrics"].size(), 1000u);
  EXPECT_EQ(requests[4].second["metrics"][3].dump(),
            R"({"key":"loss","step":3,"timestamp":1700000003000,"value":0.30000000000000004})");
  ASSERT_EQ(requests[5].second["metrics"].size(), 4u);
  EXPECT_EQ(requests[5].second["metrics"][3]["key"], "norm/grad/w");
  EXPECT_EQ(requests[5].second["metrics"][3]["value"], "NaN");
  EXPECT_EQ(requests[6].second["status"], "FINISHED");
  EXPECT_EQ(requests[8].second["run_id"], "r2");  // that was found, and is not ended
  EXPECT_THAT(notes_, ElementsAre("show it: " + server.url() + "/prefix/#/experiments/7",
                                  HasSubstr("1 rows are left out")));
}

TEST_F(MlflowTest, AnOverloadedServerIsAskedAgain) {
  FakeMlflow server({{503, "busy"}, {429, "{}"}, kExperiment, {200, "{}"}, kNewRun, {}, {}});
  const absl::Status status = Export(server.url(), {ScalarRow(1, 0, "loss", 1)});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(pauses_.size(), 2u);
}

TEST_F(MlflowTest, RefusalsAreErrorsWithARemedy) {
  const auto failure = [&](FakeMlflow::Answer answer) {
    FakeMlflow server({std::move(answer)});
    return std::string(Export(server.url(), {ScalarRow(1, 0, "loss", 1)}).message());
  };
  EXPECT_THAT(failure({401, "who?"}), HasSubstr("MLFLOW_TRACKING_TOKEN"));
  EXPECT_THAT(failure({404, "<html>"}), HasSubstr("Is it an MLflow server?"));
  EXPECT_THAT(failure({200, "<html>"}), HasSubstr("Is it an MLflow server?"));
  EXPECT_THAT(failure({200, R"({"experiment":{}})"}), HasSubstr("no experiment.experiment_id"));
  EXPECT_THAT(failure({400, R"({"error_code":"INVALID_PARAMETER_VALUE","message":"bad name"})"}),
              HasSubstr("HTTP 400: bad name"));
  EXPECT_THAT(failure({200, R"({"experiment":{"experiment_id":"7","lifecycle_stage":"deleted"}})"}),
              HasSubstr("mlflow experiments restore --experiment-id 7"));
  std::string dead;
  {
    FakeMlflow gone({});
    dead = gone.url();
  }
  const absl::Status status = Export(dead, {ScalarRow(1, 0, "loss", 1)});
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("no MLflow server answers at 127.0.0.1:"), HasSubstr("mlflow server"),
                    HasSubstr("--mlflow=")));
}

TEST_F(MlflowTest, KeysAreThoseOfTheUrlOrOfMlflowsVariables) {
  const auto sent = [&](const std::string& user,
                        const std::function<const char*(const char*)>& getenv) {
    FakeMlflow server({kExperiment});
    (void)Export("http://" + user + server.address(), {ScalarRow(1, 0, "loss", 1)}, getenv);
    return server.requests().at(0).first;
  };
  EXPECT_THAT(sent("ann:pass@", NoVariable), HasSubstr("Authorization: Basic YW5uOnBhc3M="));
  EXPECT_THAT(sent("",
                   [](const char* name) {
                     return std::string(name) == "MLFLOW_TRACKING_TOKEN" ? "tok" : nullptr;
                   }),
              HasSubstr("Authorization: Bearer tok"));
}

TEST_F(MlflowTest, UrlsOfOtherKindsAreRefused) {
  for (const char* url : {"127.0.0.1:5000", "sqlite:///a.db", "http://", "http://h:x", "databricks",
                          "http://h/a?b", "http://h/a\r\nX: y"}) {
    const absl::Status status = Export(url, {});
    EXPECT_TRUE(IsUsageError(status)) << url << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--mlflow"));
  }
}

TEST(MlflowKeyTest, KeysHaveOnlyWhatServersAccept) {
  EXPECT_EQ(MlflowKey("loss"), "loss");
  EXPECT_EQ(MlflowKey("norm(grad(layers.0.q_proj.weight))"), "norm/grad/layers.0.q_proj.weight");
  EXPECT_EQ(MlflowKey("quantiles(dense/kernel, 0.5)"), "quantiles/dense/kernel 0.5");
  EXPECT_EQ(MlflowKey("top_k(w, 2)[1]"), "top_k/w 2 1");
  EXPECT_EQ(MlflowKey("/../a//b*"), "__/a/b_");
  EXPECT_EQ(MlflowKey(""), "_");
  EXPECT_LE(MlflowKey(std::string(400, 'a')).size(), 240u);
}

}  // namespace
}  // namespace espalier
