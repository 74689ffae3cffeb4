// The Boosting service over the runner.
#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace espalier {

class BoostRunner;
class Guard;

// Both must outlive the service.
std::unique_ptr<grpc::Service> NewBoostingService(Guard* guard, BoostRunner* runner);

}  // namespace espalier
