// The Open Inference Protocol's gRPC service over the model server.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace grpc {
class Service;
}

namespace espalier {

class CallInterceptor;
class ModelServer;

// `models` and `interceptor` must outlive the service. `ready`: requests are admitted; null: they are.
std::unique_ptr<grpc::Service> NewOpenInferenceService(const ModelServer* models, CallInterceptor* interceptor,
                                                       std::function<bool()> ready,
                                                       std::string version);

}  // namespace espalier
