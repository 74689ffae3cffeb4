// MLflow's tracking server, by its REST API of version 2.0.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/gateway.h"
#include "client/cli/http.h"

namespace espalier {

struct MlflowMetric {
  std::string key;
  double value = 0;
  int64_t unix_ms = 0;
  int64_t step = 0;
};

class MlflowClient {
 public:
  // The most metrics of one call.
  static constexpr size_t kMostMetrics = 1000;

  // `url` is http[s]://[USER:PASSWORD@]HOST[:PORT][/PREFIX]. Keys and the file with the trusted
  // roots are found as MLflow's own clients find them: MLFLOW_TRACKING_USERNAME,
  // MLFLOW_TRACKING_PASSWORD, MLFLOW_TRACKING_TOKEN, MLFLOW_TRACKING_SERVER_CERT_PATH. Returns
  // UsageError, naming --mlflow, for other forms. Connects with the first call. `sleep` pauses
  // before calls are repeated.
  static absl::StatusOr<MlflowClient> Make(const std::string& url,
                                           const std::function<const char*(const char*)>& getenv,
                                           std::function<void(absl::Duration)> sleep);

  // Calls are repeated a few times while the server is overloaded or does not answer. Errors are
  // the server's, with a remedy where one is known.

  // Returns the id of the experiment of this name, which is made if there is none.
  absl::StatusOr<std::string> ExperimentId(const std::string& name);
  // Returns the id of the run whose tag has this value; empty if there is none.
  absl::StatusOr<std::string> FindRun(const std::string& experiment_id, const std::string& tag,
                                      const std::string& value);
  absl::StatusOr<std::string> CreateRun(
      const std::string& experiment_id, const std::string& name, int64_t start_unix_ms,
      const std::vector<std::pair<std::string, std::string>>& tags);
  // REQUIRES: at most kMostMetrics.
  absl::Status LogBatch(const std::string& run_id, const std::vector<MlflowMetric>& metrics);
  absl::Status FinishRun(const std::string& run_id, int64_t end_unix_ms);

  // A page of the experiment's runs, for people.
  std::string PageOf(const std::string& experiment_id) const;

 private:
  MlflowClient() = default;
  // Returns the answer to a call; null for the error code RESOURCE_DOES_NOT_EXIST.
  absl::StatusOr<nlohmann::json> Call(const std::string& method, const std::string& call,
                                      const nlohmann::json& request);
  absl::StatusOr<HttpReply> Send(const HttpRequest& request);

  Gateway gateway_;
  std::string prefix_;         // of paths: "/mlflow"
  std::string authorization_;  // empty: none
  std::string page_;           // of the server, without user and password
  std::function<void(absl::Duration)> sleep_;
};

// A label as the key of a metric, which may have letters, digits and "_-. :/" only:
// "norm(grad(w))" becomes "norm/grad/w".
std::string MlflowKey(absl::string_view label);

}  // namespace espalier
