#include <grpcpp/grpcpp.h>

#include <utility>
#include <vector>

#include "espalier/v1/ops.grpc.pb.h"
#include "ops/graph/graph_proto.h"
#include "ops/graph/infer_types.h"
#include "ops/graph/operators_proto.h"
#include "server/services/call_interceptor.h"
#include "server/services/services.h"

namespace espalier {
namespace {

using grpc::ServerContext;

class OpsService : public v1::Ops::Service {
 public:
  OpsService(CallInterceptor* interceptor, const OpRegistry* registry)
      : interceptor_(*interceptor), registry_(*registry) {}

  grpc::Status List(ServerContext* context, const v1::ListOperatorsRequest* request,
                    v1::ListOperatorsReply* reply) override {
    return interceptor_.Handle(context, "Ops/List", request, [&](const Caller&) {
      *reply = ListOperators(registry_);
      return absl::OkStatus();
    });
  }
  grpc::Status Infer(ServerContext* context, const v1::InferRequest* request,
                     v1::InferReply* reply) override {
    return interceptor_.Handle(context, "Ops/Infer", request,
                               [&](const Caller&) { return Types(*request, reply); });
  }

 private:
  absl::Status Types(const v1::InferRequest& request, v1::InferReply* reply) const {
    absl::StatusOr<Graph> graph = FromProto(registry_, request.graph());
    if (!graph.ok()) return graph.status();
    absl::StatusOr<std::vector<TensorType>> types =
        InferTypes(registry_, *graph, request.batch_size());
    if (!types.ok()) return types.status();
    for (const TensorType& type : *types) {
      v1::TensorType* message = reply->add_types();
      message->set_dtype(ToProto(type.dtype));
      message->mutable_dims()->Assign(type.dims.begin(), type.dims.end());
    }
    return absl::OkStatus();
  }

  CallInterceptor& interceptor_;
  const OpRegistry& registry_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeOpsService(CallInterceptor* interceptor,
                                              const OpRegistry* registry) {
  return std::make_unique<OpsService>(interceptor, registry);
}

}  // namespace espalier
