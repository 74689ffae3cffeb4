// The gRPC service Sessions: a thin adapter over SessionManager.
#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace espalier {

class CallInterceptor;
class SessionManager;

// Both must outlive the service.
std::unique_ptr<grpc::Service> NewSessionService(CallInterceptor* interceptor,
                                                 SessionManager* sessions);

}  // namespace espalier
