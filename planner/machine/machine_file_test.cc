#include "planner/machine/machine_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "planner/machine/collectives.h"
#include "planner/machine/presets.h"
#include "planner/machine/quantity.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kCluster[] = R"json({
  "format_version": 1,
  "name": "cluster",
  "nodes": [
    {"name": "spine"},
    {"name": "host", "parent": "spine", "count": 128, "bandwidth": "3.2 Tbit/s",
     "flow_bandwidth": "400 Gbit/s", "latency_seconds": "5 us"}
  ],
  "devices": [
    {"name": "gpu", "parent": "host", "count": 8, "bandwidth": 450e9, "latency_seconds": 1e-6,
     "kind": "cuda", "model": "NVIDIA H200", "memory_bytes": "141 GB", "matmul_flops": "50 TFLOP/s",
     "memory_bandwidth": "4.8 TB/s", "op_overhead_seconds": "4 us",
     "host_memory_bytes": 250000000000, "host_bandwidth": "54 GB/s"}
  ]
})json";

std::string ReadError(const std::string& text) {
  const auto model = ReadMachine(text);
  return model.ok() ? "accepted" : std::string(model.status().message());
}

// Returns the cluster's file with some text replaced.
std::string ErrorAfter(const std::string& from, const std::string& to) {
  const std::string text = absl::StrReplaceAll(kCluster, {{from, to}});
  EXPECT_NE(text, kCluster) << from;
  return ReadError(text);
}

MachineSpec SmallSpec() {
  MachineSpec spec;
  spec.name = "small";
  spec.nodes = {{"net"}, {"host", "net", 2, 1e9, 0, 1e-5}};
  MachineDevices d;
  d.node = {"cpu", "host", 3, 1e10, 0, 1e-6};
  d.kind = v1::Device::CPU;
  d.memory_bytes = 1000;
  d.matmul_flops = 1e10;
  d.memory_bandwidth = 1e10;
  d.op_overhead_seconds = 1e-6;
  spec.devices = {d};
  return spec;
}

TEST(MachineFileTest, CountsAreExpandedBelowEachParent) {
  const MachineModel m = ReadMachine(kCluster).value();
  EXPECT_EQ(m.name, "cluster");
  ASSERT_EQ(m.devices.size(), 1024);
  ASSERT_EQ(m.topology.num_devices(), 1024);
  EXPECT_EQ(m.topology.num_nodes(), 1 + 128 + 1024);
  EXPECT_EQ(m.topology.NodeName(m.topology.DeviceNode(0)), "host0/gpu0");
  EXPECT_EQ(m.topology.NodeName(m.topology.DeviceNode(1023)), "host127/gpu7");
  const v1::Device& d = m.devices[77];
  EXPECT_EQ(d.kind(), v1::Device::CUDA);
  EXPECT_EQ(d.model(), "NVIDIA H200");
  EXPECT_EQ(d.memory_bytes(), 141000000000);
  EXPECT_EQ(d.matmul_flops(), 50e12);
  EXPECT_EQ(d.memory_bandwidth(), 4.8e12);
  EXPECT_EQ(d.op_overhead_seconds(), 4e-6);
  EXPECT_EQ(m.host_memory_bytes[77], 250000000000);
  EXPECT_EQ(m.host_bandwidth[77], 54e9);
  // Within a host, and between two of them over one card.
  EXPECT_EQ(m.topology.TransferSeconds(0, 7, 0), 2e-6);
  EXPECT_EQ(m.topology.Bandwidth(0, 7), 450e9);
  EXPECT_EQ(m.topology.Bandwidth(0, 8), 50e9);
  EXPECT_EQ(m.topology.EdgeBandwidth(Topology::UpEdge(1)), 400e9);
}

TEST(MachineFileTest, DifferentHostsAndDevicesMakeOneMachine) {
  const MachineModel m = ReadMachine(R"json({
    "format_version": 1, "name": "mixed",
    "nodes": [{"name": "net"},
              {"name": "old", "parent": "net", "count": 2, "bandwidth": 1e9, "latency_seconds": 1e-5},
              {"name": "new", "parent": "net", "bandwidth": 4e9, "latency_seconds": 1e-5},
              {"name": "pcie", "parent": "new", "count": 2, "bandwidth": 3e10, "latency_seconds": 0}],
    "devices": [{"name": "fast", "parent": "pcie", "bandwidth": 6e10, "latency_seconds": 0,
                 "kind": "cuda", "memory_bytes": 2000, "matmul_flops": 2e13,
                 "memory_bandwidth": 1e12, "op_overhead_seconds": 1e-6},
                {"name": "slow", "parent": "old", "bandwidth": 1e10, "latency_seconds": 0,
                 "kind": "cpu", "memory_bytes": 1000, "matmul_flops": 1e12,
                 "memory_bandwidth": 1e11, "op_overhead_seconds": 1e-5, "threads": 8}]})json")
                             .value();
  ASSERT_EQ(m.devices.size(), 4);
  std::vector<std::string> names;
  for (int i = 0; i < 4; ++i) names.push_back(m.topology.NodeName(m.topology.DeviceNode(i)));
  // Depth first, in the file's order of nodes.
  EXPECT_THAT(names, ::testing::ElementsAre("old0/slow", "old1/slow", "pcie0/fast", "pcie1/fast"));
  EXPECT_EQ(m.devices[1].threads(), 8);
  EXPECT_EQ(m.devices[2].memory_bytes(), 2000);
  EXPECT_EQ(m.host_memory_bytes[0], 0);
  EXPECT_EQ(m.topology.Bandwidth(0, 2), 1e9);
  EXPECT_EQ(m.topology.Bandwidth(2, 3), 3e10);
}

TEST(MachineFileTest, OneDeviceNeedsNoNodes) {
  MachineSpec spec = SmallSpec();
  spec.nodes.clear();
  spec.devices[0].node = {"cpu"};
  const MachineModel m = ReadMachine(WriteMachine(spec)).value();
  EXPECT_EQ(m.topology.num_devices(), 1);
  EXPECT_EQ(m.spec, spec);
}

TEST(MachineFileTest, WrittenTextRoundTripsAndIsCanonical) {
  const MachineSpec spec = ParseMachine(kCluster).value();
  const std::string text = WriteMachine(spec);
  EXPECT_EQ(ParseMachine(text).value(), spec);
  EXPECT_EQ(WriteMachine(ParseMachine(text).value()), text);
  EXPECT_THAT(text, AllOf(HasSubstr(R"("bandwidth": "450 GB/s")"), HasSubstr(R"("count": 128)"),
                          HasSubstr(R"("latency_seconds": "5 us")"),
                          HasSubstr(R"("memory_bytes": "141 GB")")));
  // The same machine in other units and another order gives the same text.
  const std::string other = absl::StrReplaceAll(
      kCluster,
      {{"\"3.2 Tbit/s\"", "400e9"},
       {"\"50 TFLOP/s\"", "\"0.05 PFLOP/s\""},
       {"\"kind\": \"cuda\", \"model\"", "\"threads\": 0, \"kind\": \"cuda\", \"model\""}});
  EXPECT_EQ(WriteMachine(ParseMachine(other).value()), text);
}

TEST(MachineFileTest, RandomSpecsReadBackExactly) {
  std::mt19937_64 random(1);
  // Some with many digits, some round.
  auto real = [&](double least) {
    const double any = least * std::exp(static_cast<double>(random() % 100000) / 5000);
    return random() % 2 == 0 ? any : least * std::pow(10, static_cast<double>(random() % 6));
  };
  for (int i = 0; i < 500; ++i) {
    MachineSpec spec = SmallSpec();
    spec.description = i % 2 == 0 ? "" : "\"quoted\" \\ \xc3\xa9";
    spec.nodes[1].bandwidth = real(3e6);
    spec.nodes[1].flow_bandwidth = i % 3 == 0 ? 0 : spec.nodes[1].bandwidth / 3;
    spec.nodes[1].latency_seconds = i % 5 == 0 ? 0 : real(1e-10);
    MachineDevices& d = spec.devices[0];
    d.node.bandwidth = real(1e6);
    d.memory_bytes = 1 + static_cast<int64_t>(random() % (uint64_t{1} << (1 + random() % 52)));
    d.matmul_flops = real(1e6);
    d.memory_bandwidth = real(1e6);
    d.op_overhead_seconds = real(1e-9);
    d.threads = static_cast<int>(random() % 3);
    if (i % 2 == 0) {
      d.host_memory_bytes = 1 + static_cast<int64_t>(random() % 100000) * 1000000000;
      d.host_bandwidth = real(1e6);
    }
    const std::string text = WriteMachine(spec);
    const auto back = ParseMachine(text);
    ASSERT_TRUE(back.ok()) << back.status() << text;
    EXPECT_EQ(*back, spec) << text;
    EXPECT_EQ(WriteMachine(*back), text);
  }
}

TEST(MachineFileErrorTest, FieldsAreNamedWithTheirPlace) {
  EXPECT_THAT(ErrorAfter("\"memory_bytes\": \"141 GB\"", "\"memory_bytes\": 1, \"memory\": 1"),
              AllOf(HasSubstr("devices[0].memory: unknown field; accepted: name, parent"),
                    HasSubstr("memory_bytes")));
  EXPECT_THAT(ErrorAfter("{\"name\": \"spine\"}", "{\"name\": \"spine\", \"kind\": \"cpu\"}"),
              HasSubstr("nodes[0].kind: unknown field"));
  EXPECT_THAT(ErrorAfter("\"name\": \"cluster\",", "\"name\": \"c\", \"nmae\": 1,"),
              HasSubstr("machine: nmae: unknown field; accepted: format_version, name"));
  EXPECT_THAT(ErrorAfter("\"kind\": \"cuda\", ", ""), HasSubstr("devices[0].kind: is missing"));
  EXPECT_THAT(ErrorAfter("\"memory_bytes\": \"141 GB\", ", ""),
              HasSubstr("devices[0].memory_bytes: is missing"));
  EXPECT_THAT(ErrorAfter("\"bandwidth\": \"3.2 Tbit/s\",", ""),
              HasSubstr("nodes[1].bandwidth: is missing"));
  EXPECT_THAT(ErrorAfter("\"format_version\": 1,", ""), HasSubstr("format_version: is missing"));
  EXPECT_THAT(ErrorAfter("\"format_version\": 1", "\"format_version\": 2"),
              HasSubstr("format_version: is 2; it must be 1"));
  EXPECT_THAT(ErrorAfter("\"count\": 8,", "\"count\": 8, \"count\": 9,"),
              HasSubstr("devices[0].count: is there twice"));
}

TEST(MachineFileErrorTest, WrongTypesReportTheValue) {
  EXPECT_THAT(ErrorAfter("\"cuda\"", "7"),
              HasSubstr("devices[0].kind: is the number 7; it must be a string"));
  EXPECT_THAT(ErrorAfter("\"cuda\"", "\"tpu\""),
              HasSubstr("devices[0].kind: is \"tpu\"; accepted: \"cpu\", \"cuda\""));
  EXPECT_THAT(ErrorAfter("450e9", "[1]"),
              HasSubstr("devices[0].bandwidth: is of type array; it must be a number of bytes/s"));
  EXPECT_THAT(ErrorAfter("450e9", "null"), HasSubstr("is of type null"));
  EXPECT_THAT(ErrorAfter("\"count\": 8", "\"count\": \"8\""),
              HasSubstr("devices[0].count: is the text \"8\"; it must be an integer"));
  for (const char* bad : {"8.5", "1e3", "99999999999999999999", "-99999999999999999999"}) {
    EXPECT_THAT(ErrorAfter("\"count\": 8", absl::StrCat("\"count\": ", bad)),
                HasSubstr("devices[0].count: is the number"));
  }
  EXPECT_THAT(ErrorAfter("{\"name\": \"spine\"}", "3"),
              HasSubstr("nodes[0]: is the number 3; it must be an object"));
  EXPECT_THAT(ReadError("[]"), HasSubstr("the text: is of type array; it must be an object"));
  EXPECT_THAT(ReadError(R"({"format_version": 1, "name": "x", "devices": {}})"),
              HasSubstr("devices: is of type object; it must be an array"));
}

TEST(MachineFileErrorTest, ValuesOutOfRangeAreNamed) {
  EXPECT_THAT(ErrorAfter("\"count\": 8", "\"count\": 0"),
              HasSubstr("devices[0].count: is 0; it must be 1 to 65536"));
  EXPECT_THAT(ErrorAfter("\"count\": 8", "\"count\": -3"), HasSubstr("count: is -3"));
  EXPECT_THAT(ErrorAfter("450e9", "0"),
              HasSubstr("devices[0].bandwidth: is 0; it must be greater than 0"));
  EXPECT_THAT(ErrorAfter("450e9", "\"-450 GB/s\""), HasSubstr("bandwidth: is -4.5e+11"));
  EXPECT_THAT(ErrorAfter("\"5 us\"", "-1"), HasSubstr("nodes[1].latency_seconds: is -1"));
  EXPECT_THAT(ErrorAfter("\"400 Gbit/s\"", "\"9 TB/s\""),
              HasSubstr("nodes[1].flow_bandwidth: is 9e+12; one flow can have at most"));
  EXPECT_THAT(ErrorAfter("\"141 GB\"", "0"), HasSubstr("devices[0].memory_bytes: is 0"));
  EXPECT_THAT(ErrorAfter("\"141 GB\"", "1.5"), HasSubstr("memory_bytes: is 1.5 bytes"));
  EXPECT_THAT(ErrorAfter("\"141 GB\"", "1e300"), HasSubstr("memory_bytes: is 1e+300 bytes"));
  EXPECT_THAT(ErrorAfter("\"54 GB/s\"", "0"), HasSubstr("give both or neither"));
  EXPECT_THAT(ErrorAfter("450e9", "1e400"),
              HasSubstr("number overflow parsing '1e400' in line 10"));
  EXPECT_THAT(ErrorAfter("\"spine\"}", "\"spine\", \"bandwidth\": 1}"),
              HasSubstr("nodes[0]: has a link"));
  EXPECT_THAT(ErrorAfter("\"spine\"}", "\"spine\", \"count\": 2}"),
              HasSubstr("nodes[0].count: is 2, and there is no parent"));
  EXPECT_THAT(ErrorAfter("\"name\": \"gpu\"", "\"name\": \"g/p u\""),
              HasSubstr("devices[0].name: \"g/p u\"; accepted: 1 to 64 letters"));
  EXPECT_THAT(ErrorAfter("NVIDIA H200", "\\u001b[31mred"), HasSubstr("devices[0].model"));
}

TEST(MachineFileErrorTest, UnitsAreExplained) {
  const std::string units = "one of the units TB/s, GB/s";
  EXPECT_THAT(ErrorAfter("450e9", "\"450 GB\""),
              AllOf(HasSubstr("devices[0].bandwidth: \"450 GB\" has an unknown unit"),
                    HasSubstr(units), HasSubstr("Gbit/s")));
  EXPECT_THAT(ErrorAfter("450e9", "\"450 Gb/s\""), HasSubstr("has an unknown unit"));
  EXPECT_THAT(ErrorAfter("450e9", "\"450\""), HasSubstr("has no unit"));
  EXPECT_THAT(ErrorAfter("450e9", "\"fast\""), HasSubstr("does not begin with a number"));
  EXPECT_THAT(ErrorAfter("450e9", "\"\""), HasSubstr("does not begin with a number"));
  EXPECT_THAT(ErrorAfter("450e9", "\"nan GB/s\""), HasSubstr("does not begin with a number"));
  EXPECT_THAT(ErrorAfter("450e9", "\"1e308 GB/s\""), HasSubstr("is too large"));
  EXPECT_THAT(ErrorAfter("\"5 us\"", "\"5 minutes\""), HasSubstr("units s, ms, us, ns"));
  EXPECT_EQ(ParseQuantity("450GB/s", QuantityKind::kBytesPerSecond).value(), 450e9);
  EXPECT_EQ(ParseQuantity("400 Gbit/s", QuantityKind::kBytesPerSecond).value(), 50e9);
  EXPECT_EQ(ParseQuantity("3 us", QuantityKind::kSeconds).value(), 3e-6);
  EXPECT_EQ(ParseQuantity("1.5 GiB", QuantityKind::kBytes).value(), 1.5 * (1 << 30));
  EXPECT_EQ(FormatQuantity(3e-6, QuantityKind::kSeconds), "3 us");
  EXPECT_EQ(FormatQuantity(1 << 30, QuantityKind::kBytes), "1 GiB");
  EXPECT_EQ(FormatQuantity(1.0 / 3, QuantityKind::kBytes), "");
}

// Times on such a machine would overflow.
TEST(MachineFileErrorTest, ARateWithoutItsUnitIsNamed) {
  EXPECT_THAT(ErrorAfter("450e9", "900"),
              AllOf(HasSubstr("devices[0].bandwidth: is 900 a second; it must be at least 100000"),
                    HasSubstr("\"10 Gbit/s\"")));
  EXPECT_THAT(ErrorAfter("\"4.8 TB/s\"", "4800"),
              AllOf(HasSubstr("devices[0].memory_bandwidth: is 4800 a second; it must be at least "
                              "1e+06"),
                    HasSubstr("\"900 GB/s\"")));
  EXPECT_THAT(
      ErrorAfter("\"50 TFLOP/s\"", "50"),
      AllOf(HasSubstr("devices[0].matmul_flops: is 50 a second"), HasSubstr("\"60 TFLOP/s\"")));
  EXPECT_THAT(ErrorAfter("\"400 Gbit/s\"", "400"),
              HasSubstr("nodes[1].flow_bandwidth: is 400 a second"));
  EXPECT_THAT(ErrorAfter("\"54 GB/s\"", "54"), HasSubstr("devices[0].host_bandwidth: is 54"));
  EXPECT_THAT(ErrorAfter("\"5 us\"", "1e300"),
              HasSubstr("nodes[1].latency_seconds: is 1e+300 seconds; it must be at most 10"));
  EXPECT_THAT(ErrorAfter("\"4 us\"", "4000"),
              HasSubstr("devices[0].op_overhead_seconds: is 4000 seconds"));
}

TEST(MachineFileTest, ALinkMayBeASlowOneOverTheInternet) {
  EXPECT_EQ(ErrorAfter("\"400 Gbit/s\"", "\"1 Mbit/s\""), "accepted");
  EXPECT_EQ(ErrorAfter("\"3.2 Tbit/s\",\n     \"flow_bandwidth\": \"400 Gbit/s\"", "\"1 Mbit/s\""),
            "accepted");
}

TEST(MachineFileErrorTest, TreesAreCheckedBeforeExpansion) {
  EXPECT_THAT(ErrorAfter("\"parent\": \"host\"", "\"parent\": \"rack\""),
              AllOf(HasSubstr("\"gpu\""), HasSubstr("\"rack\" does not exist")));
  EXPECT_THAT(ErrorAfter("\"parent\": \"spine\"", "\"parent\": \"host\""),
              HasSubstr("a cycle: \"host\" -> \"host\""));
  EXPECT_THAT(ErrorAfter("\"parent\": \"spine\"", "\"parent\": \"gpu\""), HasSubstr("is a device"));
  EXPECT_THAT(ErrorAfter("\"name\": \"gpu\"", "\"name\": \"host\""), HasSubstr("twice"));
  EXPECT_THAT(ErrorAfter("\"count\": 8", "\"count\": 1000"),
              AllOf(HasSubstr("128000 times \"gpu\""), HasSubstr("at most 65536 devices")));
  EXPECT_THAT(ErrorAfter("\"count\": 128", "\"count\": 99999"),
              HasSubstr("nodes[1].count: is 99999"));
  EXPECT_THAT(ReadError(R"({"format_version": 1, "name": "x", "devices": []})"),
              HasSubstr("no devices"));
  // Twenty levels of 1,000 each: the product is never computed.
  MachineSpec spec = SmallSpec();
  spec.nodes = {{"n0"}};
  for (int i = 1; i < 20; ++i) {
    spec.nodes.push_back({absl::StrCat("n", i), absl::StrCat("n", i - 1), 1000, 1e9, 0, 0});
  }
  spec.devices[0].node.parent = "n19";
  EXPECT_EQ(BuildMachine(spec).status().code(), absl::StatusCode::kResourceExhausted);
  // Instance names that collide.
  spec = SmallSpec();
  spec.nodes.push_back({"host1", "net", 1, 1e9, 0, 0});
  EXPECT_THAT(std::string(BuildMachine(spec).status().message()),
              AllOf(HasSubstr("\"host1\""), HasSubstr("twice")));
}

TEST(MachineFileErrorTest, SpecsOfProgramsAreChecked) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  auto error = [](auto change) {
    MachineSpec spec = SmallSpec();
    change(spec);
    return std::string(BuildMachine(spec).status().message());
  };
  EXPECT_EQ(error([](MachineSpec&) {}), "");
  EXPECT_THAT(error([&](MachineSpec& s) { s.nodes[1].bandwidth = nan; }),
              HasSubstr("nodes[1].bandwidth: is nan"));
  EXPECT_THAT(error([&](MachineSpec& s) { s.devices[0].matmul_flops = nan; }),
              HasSubstr("devices[0].matmul_flops: is nan"));
  EXPECT_THAT(error([&](MachineSpec& s) { s.devices[0].op_overhead_seconds = 0; }),
              HasSubstr("op_overhead_seconds: is 0"));
  EXPECT_THAT(error([](MachineSpec& s) { s.devices[0].kind = v1::Device::KIND_UNSPECIFIED; }),
              HasSubstr("devices[0].kind"));
  EXPECT_THAT(error([](MachineSpec& s) { s.name = ""; }), HasSubstr("machine: name: \"\""));
}

TEST(MachineFileErrorTest, RejectsTextThatIsNoMachine) {
  EXPECT_THAT(ReadError(""), HasSubstr("line 1, column 1"));
  EXPECT_THAT(ReadError("{\n\"name\": }"), HasSubstr("line 2"));
  EXPECT_THAT(ReadError(std::string(100000, '[')), HasSubstr("nested more than 8 deep"));
  EXPECT_THAT(ReadError(R"({"a": [[], {"b": 1, "c": 2, "b": 3}]})"), HasSubstr("a[1].b: is there"));
  EXPECT_LT(ReadError("\"" + std::string(100000, 'x')).size(), 400);
  EXPECT_THAT(ReadError("{\"\xff\": 1}"), AllOf(HasSubstr("invalid"), Not(HasSubstr("\xff"))));
  EXPECT_THAT(ReadError(std::string((16 << 20) + 1, ' ')), HasSubstr("at most 16777216"));
}

TEST(MachineFileErrorTest, RandomCorruptionNeverCrashes) {
  std::mt19937_64 random(2);
  const std::string text = PresetText("h200-cluster", 16).value();
  const std::string pieces[] = {"{",        "}",     "[",     "]",      "\"",     ",",
                                ":",        "1e308", "-1",    "null",   "\\",     "\xff",
                                "\"name\"", "0",     "count", "1e-400", "\\ud800"};
  int accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string damaged = text;
    for (uint64_t edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % damaged.size();
      switch (random() % 4) {
        case 0:
          damaged[at] = static_cast<char>(random());
          break;
        case 1:
          damaged.erase(at, 1 + random() % 40);
          break;
        case 2:
          damaged.insert(at, pieces[random() % std::size(pieces)]);
          break;
        default:
          damaged.insert(at, damaged.substr(random() % damaged.size(), random() % 60));
      }
      if (damaged.empty()) damaged = "{";
    }
    const auto model = ReadMachine(damaged);
    if (!model.ok()) {
      EXPECT_FALSE(model.status().message().empty());
      EXPECT_LT(model.status().message().size(), 1000);
      continue;
    }
    ++accepted;
    EXPECT_EQ(ParseMachine(WriteMachine(model->spec)).value(), model->spec);
  }
  EXPECT_GT(accepted, 0);  // for instance, corruption of the description
}

TEST(PresetsTest, EveryPresetHasTheDevicesAskedFor) {
  for (const MachinePreset& preset : MachinePresets()) {
    for (int n : {1, 2, 8, 64, 1024, 16384}) {
      if (n > preset.max_devices) continue;
      const auto machine = PresetMachine(preset.name, n);
      ASSERT_TRUE(machine.ok()) << preset.name << " " << machine.status();
      EXPECT_EQ(machine->name, preset.name);
      EXPECT_EQ(static_cast<int>(machine->devices.size()), n);
      EXPECT_FALSE(machine->spec.description.empty());
      EXPECT_FALSE(preset.summary.empty());
      EXPECT_EQ(ParseMachine(WriteMachine(machine->spec)).value(), machine->spec);
    }
  }
}

TEST(PresetsTest, ClustersAreSlowerBetweenHostsThanInside) {
  for (const char* name : {"h200-cluster", "a100-cluster"}) {
    const MachineModel m = PresetMachine(name, 64).value();
    EXPECT_GT(m.topology.Bandwidth(0, 7), 5 * m.topology.Bandwidth(0, 8));
    EXPECT_EQ(m.topology.EdgeBandwidth(Topology::UpEdge(1)), 8 * m.topology.Bandwidth(0, 8));
    // All eight cards together beat a ring that uses one.
    const auto kind = v1::CollectiveInstruction::ALL_REDUCE;
    std::vector<int> ranks(64);
    for (int i = 0; i < 64; ++i) ranks[i] = i;
    const CollectiveModel model = CollectiveModel::Create(m.topology, kind, ranks).value();
    EXPECT_LT(model.Best(1e9).seconds, model.Seconds(CollectiveAlgorithm::kRing, 1e9) / 3);
  }
}

TEST(PresetsTest, UnknownNamesAndSizesAreExplained) {
  auto error = [](const std::string& name, int n) {
    const auto text = PresetText(name, n);
    return text.ok() ? "accepted" : std::string(text.status().message());
  };
  EXPECT_EQ(PresetText("h300", 8).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(error("h300", 8),
              AllOf(HasSubstr("\"h300\" is unknown; accepted: h200x8, h200-cluster"),
                    HasSubstr("cpu-ethernet")));
  EXPECT_THAT(error("h200x8", 9), HasSubstr("9 devices; accepted: 1 to 8 (one host)"));
  EXPECT_THAT(error("h200-cluster", 12),
              HasSubstr("12 devices; accepted: 1 to 8 (one host), or multiples of 8 up to 65536"));
  EXPECT_THAT(error("cpu-ethernet", 0), HasSubstr("0 devices; accepted: 1 to 65536"));
  EXPECT_THAT(error("cpu-ethernet", 65537), HasSubstr("accepted: 1 to 65536"));
  EXPECT_THAT(error("a100-cluster", -8), HasSubstr("-8 devices"));
}

}  // namespace
}  // namespace espalier
