#include "server/http/added_headers.h"

#include <algorithm>
#include <utility>

namespace espalier {
namespace {

class AddingResponder : public HttpResponder {
 public:
  AddingResponder(std::shared_ptr<HttpResponder> inner, Headers added)
      : inner_(std::move(inner)), added_(std::move(added)) {}

  void Send(int status, std::string content_type, std::string body, Headers headers) override {
    inner_->Send(status, std::move(content_type), std::move(body), Completed(std::move(headers)));
  }
  void StartStream(int status, std::string content_type, Headers headers) override {
    inner_->StartStream(status, std::move(content_type), Completed(std::move(headers)));
  }
  void Write(std::string data) override { inner_->Write(std::move(data)); }
  void End() override { inner_->End(); }
  void OnClose(std::function<void()> closed) override { inner_->OnClose(std::move(closed)); }

 private:
  Headers Completed(Headers headers) const {
    for (const auto& added : added_) {
      const bool given = std::any_of(headers.begin(), headers.end(), [&](const auto& header) {
        return header.first == added.first;
      });
      if (!given) headers.push_back(added);
    }
    return headers;
  }

  const std::shared_ptr<HttpResponder> inner_;
  const Headers added_;
};

}  // namespace

std::shared_ptr<HttpResponder> WithHeaders(std::shared_ptr<HttpResponder> responder,
                                           HttpResponder::Headers headers) {
  if (headers.empty()) return responder;
  return std::make_shared<AddingResponder>(std::move(responder), std::move(headers));
}

}  // namespace espalier
