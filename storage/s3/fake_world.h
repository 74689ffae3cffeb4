// HTTP servers, files, time and variables that a test writes down.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "storage/s3/aws_profile.h"
#include "storage/s3/http.h"
#include "storage/s3/retry.h"

namespace espalier::s3 {

class FakePauses : public Pauses {
 public:
  absl::Time Now() override { return now; }
  void Sleep(absl::Duration duration) override {
    slept.push_back(duration);
    now += duration;
  }
  double Chance() override { return chance; }

  absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  double chance = 0.5;
  std::vector<absl::Duration> slept;
};

// Answers by "METHOD URL"; what is not there cannot be reached.
class FakeHttp : public HttpTransport {
 public:
  using Answer = std::function<HttpResponse(const HttpRequest&)>;

  void Add(const std::string& method_and_url, int status, const std::string& body) {
    answers_[method_and_url] = [=](const HttpRequest&) { return HttpResponse{status, {}, body}; };
  }
  void Add(const std::string& method_and_url, Answer answer) {
    answers_[method_and_url] = std::move(answer);
  }

  absl::StatusOr<HttpResponse> Send(const HttpRequest& request) override {
    const std::string asked = absl::StrCat(request.method, " ", request.url);
    requests.push_back(asked);
    const auto answer = answers_.find(asked);
    if (answer == answers_.end()) return absl::UnavailableError("cannot be reached");
    return answer->second(request);
  }

  std::vector<std::string> requests;

 private:
  std::map<std::string, Answer> answers_;
};

inline std::string HeaderOf(const HttpRequest& request, const std::string& name) {
  for (const auto& [key, value] : request.headers) {
    if (key == name) return value;
  }
  return "";
}

inline Environment VariablesOf(const std::map<std::string, std::string>& variables) {
  return [&variables](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  };
}

}  // namespace espalier::s3
