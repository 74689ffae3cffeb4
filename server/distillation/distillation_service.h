// The gRPC service Distillation.
#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace espalier {

class DistillationRunner;
class CallInterceptor;

// Both must outlive the service.
std::unique_ptr<grpc::Service> NewDistillationService(CallInterceptor* interceptor,
                                                      DistillationRunner* runner);

}  // namespace espalier
