#include "server/http/open_inference/infer_route.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/http/open_inference/infer_json.h"
#include "server/http/send_error.h"
#include "server/inference/services/open_inference.h"

namespace espalier {
namespace {

struct AnswerForm {
  std::string model, version, id;
  bool binary = false;
  std::vector<bool> binary_outputs;  // empty: `binary` for all
};

absl::StatusOr<std::optional<size_t>> JsonBytesOf(const HttpRequest& request) {
  const auto header = request.headers.find(absl::AsciiStrToLower(kInferHeaderLength));
  if (header == request.headers.end()) return std::optional<size_t>();
  uint64_t bytes = 0;
  if (!absl::SimpleAtoi(header->second, &bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("header '", kInferHeaderLength, "' is no number of bytes"));
  }
  return std::optional<size_t>(bytes);
}

void Answer(const AnswerForm& form, const std::vector<InferTensor>& outputs,
            HttpResponder& responder) {
  const std::vector<bool> binary = form.binary_outputs.empty()
                                       ? std::vector<bool>(outputs.size(), form.binary)
                                       : form.binary_outputs;
  absl::StatusOr<InferAnswer> answer =
      FormatInferAnswer(form.model, form.version, form.id, outputs, binary);
  if (!answer.ok()) return SendError(responder, answer.status(), &MessageAlone);
  if (!answer->json_bytes.has_value()) {
    return responder.Send(200, "application/json", std::move(answer->body));
  }
  responder.Send(200, "application/octet-stream", std::move(answer->body),
                 {{kInferHeaderLength, absl::StrCat(*answer->json_bytes)}});
}

}  // namespace

void Infer(const HttpRequest& request, const std::string& model, const std::string& version,
           const RouteContext& context, std::shared_ptr<HttpResponder> responder) {
  const absl::StatusOr<std::shared_ptr<LoadedModel>> served =
      FindGraph(model, version, context.caller, *context.models);
  if (!served.ok()) return SendError(*responder, served.status(), &MessageAlone);
  const absl::StatusOr<std::optional<size_t>> json_bytes = JsonBytesOf(request);
  if (!json_bytes.ok()) return SendError(*responder, json_bytes.status(), &MessageAlone);
  absl::StatusOr<InferBody> body = ParseInferBody(request.body, *json_bytes);
  if (!body.ok()) return SendError(*responder, body.status(), &MessageAlone);
  AnswerForm form{model, VersionOf((*served)->description), std::move(body->id), body->binary,
                  std::move(body->binary_outputs)};
  StartInfer(**served, std::move(body->call), absl::InfiniteFuture(),
             [form = std::move(form), responder, thread = context.serialization_thread](
                 absl::StatusOr<std::vector<InferTensor>> outputs) {
               if (!outputs.ok()) return SendError(*responder, outputs.status(), &MessageAlone);
               if (thread == nullptr) return Answer(form, *outputs, *responder);
               // Not on the thread that computes.
               thread->Run([form, responder, outputs = *std::move(outputs)] {
                 Answer(form, outputs, *responder);
               });
             });
}

}  // namespace espalier
