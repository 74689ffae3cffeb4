// Calls every method of a service, whatever it takes, for tests of what stands before all of them.
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

namespace espalier {

// One empty message to each, with `authorization` as metadata (empty: none). Statuses by method's
// name. `service`: its full name; its descriptor must be linked in.
inline std::map<std::string, grpc::Status> CallEveryMethod(const std::string& address,
                                                           const std::string& service,
                                                           const std::string& authorization) {
  std::map<std::string, grpc::Status> statuses;
  const auto* found =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(service);
  if (found == nullptr) return statuses;
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  for (int m = 0; m < found->method_count(); ++m) {
    const std::string name = found->method(m)->name();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    if (!authorization.empty()) context.AddMetadata("authorization", authorization);
    grpc::CompletionQueue queue;
    const auto wait = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    auto call = stub.PrepareCall(&context, "/" + service + "/" + name, &queue);
    call->StartCall(nullptr);
    const grpc::Slice nothing;
    if (wait()) {
      call->Write(grpc::ByteBuffer(&nothing, 1), nullptr);
      if (wait()) {
        call->WritesDone(nullptr);
        wait();
      }
    }
    // The status comes after all replies.
    grpc::ByteBuffer reply;
    do {
      call->Read(&reply, nullptr);
    } while (wait());
    call->Finish(&statuses[name], nullptr);
    wait();
    queue.Shutdown();
    while (wait()) continue;
  }
  return statuses;
}

}  // namespace espalier
