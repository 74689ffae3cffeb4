// gRPC service Inference, on top of the model server.
#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace espalier {

class CallInterceptor;
class ModelServer;
class ServingMetrics;

// All pointers must outlive the service. `metrics` may be null.
std::unique_ptr<grpc::Service> NewInferenceService(ModelServer* models,
                                                   CallInterceptor* interceptor,
                                                   ServingMetrics* metrics);

}  // namespace espalier
