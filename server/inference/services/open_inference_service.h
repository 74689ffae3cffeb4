// gRPC service of the Open Inference Protocol, on top of the model server.
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

// `models` and `interceptor` must outlive the service. `ready`: whether requests are admitted;
// null: always.
std::unique_ptr<grpc::Service> NewOpenInferenceService(const ModelServer* models,
                                                       CallInterceptor* interceptor,
                                                       std::function<bool()> ready,
                                                       std::string version);

}  // namespace espalier
