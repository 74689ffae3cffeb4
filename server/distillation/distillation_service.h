// The Boosting service over the runner.
#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace espalier {

class BoostRunner;
class CallInterceptor;

// Both must outlive the service.
std::unique_ptr<grpc::Service> NewBoostingService(CallInterceptor* interceptor, BoostRunner* runner);

}  // namespace espalier
