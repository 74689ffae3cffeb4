// Profiles round-trip between clusters, and invalid files are rejected.
#include "planner/cost/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/cost/analytic_cost.h"
#include "planner/machine/communication.h"
#include "planner/testing/graphs.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

NodeTypes Linear(int64_t rows) {
  NodeTypes types;
  types.inputs = {{DType::kF32, {rows, 16}}, {DType::kF32, {4, 16}}};
  types.outputs = {{DType::kF32, {rows, 4}}};
  return types;
}

std::vector<v1::Device> Devices(std::vector<std::string> hosts) {
  std::vector<v1::Device> devices;
  for (const std::string& host : hosts) {
    v1::Device& device = devices.emplace_back();
    device.set_kind(v1::Device::CPU);
    device.set_model("Xeon");
    device.set_threads(2);
    device.set_host(host);
  }
  return devices;
}

v1::CommunicationProfile Communication() {
  v1::CommunicationProfile profile;
  auto* message = profile.add_messages();
  message->set_bytes(1024);
  message->set_send_seconds(1.0 / 3);
  message->set_receive_seconds(2.5e-5);
  auto* gather = profile.add_collectives();
  gather->set_kind(v1::CollectiveInstruction::ALL_GATHER);
  gather->set_ranks(3);
  gather->set_bytes(65536);
  gather->set_seconds(7e-4);
  return profile;
}

TEST(ProfileTest, RoundTripsToAnotherCluster) {
  AnalyticCost analytic;
  MeasuredCost operators(&analytic), again(&analytic);
  const OpDef& linear = *TestRegistry().Find("linear");
  const v1::Device device = Devices({"a"})[0];
  operators.Record(linear, Linear(8), device, {1.25e-5, 2.5e-5});
  CommunicationProfiles communication, communication_again;
  communication[CommunicationKey(Devices({"a", "a", "b"}))] = Communication();
  const std::string text = SaveProfile(operators, communication);
  ASSERT_EQ(LoadProfile(text, &again, &communication_again), absl::OkStatus());
  EXPECT_EQ(again.Measure(linear, Linear(8), device).backward, 2.5e-5);
  // The hosts' names differ.
  const auto found = communication_again.find(CommunicationKey(Devices({"x", "y", "y"})));
  ASSERT_NE(found, communication_again.end());
  EXPECT_EQ(found->second.SerializeAsString(), Communication().SerializeAsString());
  EXPECT_EQ(SaveProfile(again, communication_again), text);
}

TEST(ProfileTest, KeysDifferByHostsModelsAndThreads) {
  const std::string together = CommunicationKey(Devices({"a", "a"}));
  EXPECT_EQ(together, "2 x Xeon x2");
  EXPECT_EQ(CommunicationKey(Devices({"a", "b"})), "1 x Xeon x2 | 1 x Xeon x2");
  EXPECT_EQ(CommunicationKey(Devices({"", ""})), CommunicationKey(Devices({"a", "b"})));
  EXPECT_NE(CommunicationKey(Devices({"a", "a", "a"})), together);
  std::vector<v1::Device> mixed = Devices({"a", "a"});
  mixed[0].set_model("Opteron");
  EXPECT_EQ(CommunicationKey(mixed), "1 x Opteron x2, 1 x Xeon x2");
}

TEST(ProfileTest, RejectsBadFilesAtomicallyWithThePlace) {
  AnalyticCost analytic;
  MeasuredCost operators(&analytic);
  const std::string good_operators = R"("operators": {"format_version": 1, "entries": [
      {"key": "a", "forward": 1, "backward": 1}]})";
  const auto error = [&](const std::string& text) {
    CommunicationProfiles communication;
    absl::Status status = LoadProfile(text, &operators, &communication);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(operators.size(), 0u);
    EXPECT_TRUE(communication.empty());
    return std::string(status.message());
  };
  EXPECT_THAT(error("no"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error("7"), HasSubstr("not a JSON object"));
  EXPECT_THAT(error("{}"), HasSubstr("espalier profile export"));
  EXPECT_THAT(error(R"({"espalier_profile": 2})"), HasSubstr("must be 1"));
  EXPECT_THAT(error(std::string(1000000, '[')), HasSubstr("deep"));
  const auto with = [&](const std::string& communication) {
    return R"({"espalier_profile": 1, "communication": )" + communication + ", " + good_operators +
           "}";
  };
  EXPECT_THAT(error(with("7")), HasSubstr("'communication' must be an array"));
  EXPECT_THAT(error(with(R"([{"messages": []}])")), HasSubstr("communication[0].between"));
  EXPECT_THAT(error(with(R"([{"between": "a"}, {"between": "a"}])")), HasSubstr("twice"));
  EXPECT_THAT(error(with(R"([{"between": "a", "messages": [{"bytes": 1}]}])")),
              HasSubstr("communication[0].messages[0].send_seconds must be a number"));
  EXPECT_THAT(error(with(R"([{"between": "a", "messages": [
                  {"bytes": 1, "send_seconds": -1, "receive_seconds": 1}]}])")),
              HasSubstr("communication[0]: communication profile: messages[0]"));
  EXPECT_THAT(error(with(R"([{"between": "a", "collectives": [
                  {"kind": "SUM", "ranks": 2, "bytes": 1, "seconds": 1}]}])")),
              HasSubstr("collectives[0].kind: accepted are ALL_REDUCE"));
  EXPECT_THAT(error(with(R"([{"between": "a", "collectives": [
                  {"kind": "ALL_REDUCE", "ranks": 2.5, "bytes": 1, "seconds": 1}]}])")),
              HasSubstr("collectives[0].ranks is 2.5"));
  // Milliseconds for seconds, or worse.
  EXPECT_THAT(error(with(R"([{"between": "a", "messages": [
                  {"bytes": 1, "send_seconds": 1, "receive_seconds": 1e300}]}])")),
              HasSubstr("seconds at most 10000"));
  EXPECT_THAT(error(R"({"espalier_profile": 1, "communication": [], "operators":
                  {"format_version": 1, "entries": [
                  {"key": "a", "forward": 1e300, "backward": 1}]}})"),
              HasSubstr("seconds, 0 to 10000"));
  EXPECT_THAT(error(R"({"espalier_profile": 1, "communication": [], "operators": []})"),
              HasSubstr("'operators' must be an object"));
  EXPECT_THAT(error(R"({"espalier_profile": 1, "communication": [], "operators": {}})"),
              HasSubstr("operators: measured costs: field 'format_version'"));
}

}  // namespace
}  // namespace espalier
