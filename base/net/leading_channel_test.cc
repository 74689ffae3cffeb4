#include "base/net/leading_channel.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace espalier {
namespace {

// Answers every call with its name as an error, or, while it stands by, with UNAVAILABLE.
class Coordinator {
 public:
  Coordinator(std::string name, bool leads) : leads(leads), name_(std::move(name)) { Start(); }
  ~Coordinator() { End(); }

  void Start() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port_), grpc::InsecureServerCredentials(),
                             &port_);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    service_ = std::make_unique<Service>(this);
    builder.RegisterCallbackGenericService(service_.get());
    server_ = builder.BuildAndStart();
  }
  void End() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  std::atomic<bool> leads, hangs = false;
  std::atomic<int> calls = 0;

 private:
  class Reactor : public grpc::ServerGenericBidiReactor {
   public:
    explicit Reactor(const grpc::Status& status) { Finish(status); }
    void OnDone() override { delete this; }
  };
  // Never answers.
  class Silent : public grpc::ServerGenericBidiReactor {
   public:
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }
  };
  class Service : public grpc::CallbackGenericService {
   public:
    explicit Service(Coordinator* of) : of_(*of) {}

   private:
    grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
      ++of_.calls;
      if (of_.hangs) return new Silent;
      return new Reactor(
          of_.leads ? grpc::Status(grpc::StatusCode::ALREADY_EXISTS, of_.name_)
                    : grpc::Status(grpc::StatusCode::UNAVAILABLE, of_.name_ + " stands by"));
    }
    Coordinator& of_;
  };

  const std::string name_;
  int port_ = 0;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
};

// What a call over the channel gets.
std::string Call(const std::shared_ptr<grpc::ChannelInterface>& channel) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
  grpc::CompletionQueue queue;
  const grpc::Slice empty;
  const grpc::ByteBuffer request(&empty, 1);
  const auto call = stub.PrepareUnaryCall(&context, "/any.Service/Method", request, &queue);
  call->StartCall();
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status.error_message();
}

class LeadingChannelTest : public ::testing::Test {
 protected:
  std::shared_ptr<grpc::ChannelInterface> Channel() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
    return LeadingChannel({a_.address(), b_.address()}, arguments, nullptr);
  }

  Coordinator a_{"a", false}, b_{"b", true};
};

TEST_F(LeadingChannelTest, CallsGoToTheOneThatLeads) {
  const auto channel = Channel();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Call(channel), "b");
  EXPECT_EQ(a_.calls, 1) << "it is asked once";
}

TEST_F(LeadingChannelTest, CallsFollowTheLeaderThatDied) {
  const auto channel = Channel();
  EXPECT_EQ(Call(channel), "b");
  b_.End();
  a_.leads = true;
  const absl::Time begin = absl::Now();
  while (Call(channel) != "a") {
    ASSERT_LT(absl::Now() - begin, absl::Seconds(5));
  }
  EXPECT_EQ(Call(channel), "a");
}

TEST_F(LeadingChannelTest, CallsFollowALeaderThatIsStartedAgain) {
  const auto channel = Channel();
  EXPECT_EQ(Call(channel), "b");
  b_.End();
  EXPECT_NE(Call(channel), "b");
  EXPECT_EQ(Call(channel), "a stands by") << "the reason, as long as nobody leads";
  b_.Start();
  const absl::Time begin = absl::Now();
  while (Call(channel) != "b") {
    ASSERT_LT(absl::Now() - begin, absl::Seconds(5));
  }
}

// A heartbeat would come too late if each were waited for.
TEST_F(LeadingChannelTest, ThoseThatDoNotAnswerHoldUpNobody) {
  Coordinator c("c", false);
  a_.hangs = c.hangs = true;
  const auto channel =
      LeadingChannel({a_.address(), c.address(), b_.address()}, grpc::ChannelArguments(), nullptr);
  const absl::Time begin = absl::Now();
  EXPECT_EQ(Call(channel), "b");
  EXPECT_LT(absl::Now() - begin, absl::Milliseconds(1500));
}

TEST(SplitAddressesTest, NoAddressIsEmpty) {
  EXPECT_EQ(*SplitAddresses("a:1, b:2", "--x"), (std::vector<std::string>{"a:1", "b:2"}));
  for (const char* bad : {"", ",", "a:1,", ",a:1"}) {
    EXPECT_EQ(SplitAddresses(bad, "--x").status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace espalier
