// Calls any gRPC method generically, to test what runs before all methods (authorization).
#pragma once

#include <google/protobuf/descriptor.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace espalier {

struct RpcResult {
  grpc::Status status;
  std::string reply;  // the first, serialized; empty: none
};

// Sends one serialized message to `method` ("package.Service/Method") with `authorization` as
// metadata (empty: none).
inline RpcResult CallMethod(const std::string& address, const std::string& method,
                            const std::string& authorization, const std::string& message = "") {
  RpcResult answer;
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  if (!authorization.empty()) context.AddMetadata("authorization", authorization);
  grpc::CompletionQueue queue;
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  auto call = stub.PrepareCall(&context, "/" + method, &queue);
  call->StartCall(nullptr);
  const grpc::Slice slice(message);
  if (wait()) {
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    if (wait()) {
      call->WritesDone(nullptr);
      wait();
    }
  }
  // The status comes after all replies.
  for (bool first = true;; first = false) {
    grpc::ByteBuffer reply;
    call->Read(&reply, nullptr);
    if (!wait()) break;
    std::vector<grpc::Slice> parts;
    if (!first || !reply.Dump(&parts).ok()) continue;
    for (const grpc::Slice& part : parts) {
      answer.reply.append(reinterpret_cast<const char*>(part.begin()), part.size());
    }
  }
  call->Finish(&answer.status, nullptr);
  wait();
  queue.Shutdown();
  while (wait()) continue;
  return answer;
}

// Sends an empty message to each method of `service` (full name; its descriptor must be linked in).
// Returns statuses by method name.
inline std::map<std::string, grpc::Status> CallEveryMethod(const std::string& address,
                                                           const std::string& service,
                                                           const std::string& authorization) {
  std::map<std::string, grpc::Status> statuses;
  const auto* found =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(service);
  if (found == nullptr) return statuses;
  for (int m = 0; m < found->method_count(); ++m) {
    const std::string name = found->method(m)->name();
    statuses[name] = CallMethod(address, service + "/" + name, authorization).status;
  }
  return statuses;
}

}  // namespace espalier
