#include "server/http/request_id.h"

#include <algorithm>
#include <utility>

namespace espalier {
namespace {

class NamingResponder : public HttpResponder {
 public:
  NamingResponder(std::shared_ptr<HttpResponder> inner, std::string id)
      : inner_(std::move(inner)), id_(std::move(id)) {}

  void Send(int status, std::string content_type, std::string body, Headers headers) override {
    inner_->Send(status, std::move(content_type), std::move(body), Named(std::move(headers)));
  }
  void StartStream(int status, std::string content_type, Headers headers) override {
    inner_->StartStream(status, std::move(content_type), Named(std::move(headers)));
  }
  void Write(std::string data) override { inner_->Write(std::move(data)); }
  void End() override { inner_->End(); }
  void OnClose(std::function<void()> closed) override { inner_->OnClose(std::move(closed)); }

 private:
  Headers Named(Headers headers) const {
    const bool named = std::any_of(headers.begin(), headers.end(), [](const auto& header) {
      return header.first == "X-Request-Id";
    });
    if (!named) headers.insert(headers.end(), {{"X-Request-Id", id_}, {"Request-Id", id_}});
    return headers;
  }

  const std::shared_ptr<HttpResponder> inner_;
  const std::string id_;
};

}  // namespace

std::shared_ptr<HttpResponder> WithRequestId(std::shared_ptr<HttpResponder> responder,
                                             std::string id) {
  return std::make_shared<NamingResponder>(std::move(responder), std::move(id));
}

}  // namespace espalier
