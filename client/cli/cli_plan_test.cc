// The planning commands.
#include <filesystem>
#include <fstream>
#include <functional>

#include "client/cli/cli_fixture.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST_F(CliTest, PlansForHypotheticalDevicesAndExports) {
  *fake_.state()->explanation.mutable_plan() = fake_.state()->job.plan();
  fake_.state()->explanation.set_text("operator  split\n");
  const std::string file = home_ + "/plan.json";
  EXPECT_EQ(Run({"plan", "--model=llama:tiny", "-b", "32", "--devices=4", "--device-preset=h200",
                 "--export-strategy=" + file}),
            kExitOk)
      << err_.str();
  const v1::PlanRequest& request = fake_.state()->explains[0].plan();
  EXPECT_EQ(request.devices_size(), 4);
  EXPECT_EQ(request.devices(3).kind(), v1::Device::CUDA);
  EXPECT_EQ(request.batch_size(), 32);
  EXPECT_THAT(out_.str(), HasSubstr("operator  split"));
  // An exported plan can be imported.
  EXPECT_EQ(Run({"plan", "--model=llama:tiny", "--import-strategy=" + file}), kExitOk)
      << err_.str();
  EXPECT_EQ(fake_.state()->explains[1].plan().search().imported().operators(0).node(), "lm_head");
  std::ofstream(file) << "{\"operators\": 7}";
  EXPECT_EQ(Run({"plan", "--model=llama:tiny", "--import-strategy=" + file}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("holds no plan"));
}

// FlexFlow's flags as in its manual and README: each has its documented effect.
TEST_F(CliTest, FlexFlowsFlagsSayWhatTheyMean) {
  *fake_.state()->explanation.mutable_plan() = fake_.state()->job.plan();
  fake_.state()->explanation.set_task_graph("digraph tasks {}");
  fake_.state()->explanation.set_computation_graph("digraph operators {}");
  const std::string exported = home_ + "/exported.json", machine = home_ + "/machine.json";
  ASSERT_EQ(Run({"plan", "--model=llama:tiny", "--export-strategy=" + exported}), kExitOk)
      << err_.str();
  std::ofstream(machine) << "{}";
  using Request = v1::ExplainRequest;
  const auto search = [](const Request& r) -> const v1::SearchOptions& {
    return r.plan().search();
  };
  const auto first = [](const Request& r) { return r.plan().search().imported().operators(0); };
  struct Case {
    std::vector<std::string> flags;
    std::function<bool(const Request&)> says;
  };
  const auto budget = [&](const Request& r) { return search(r).budget() == 30; };
  const auto alpha = [&](const Request& r) { return search(r).alpha() == 0.05; };
  const auto imported = [&](const Request& r) {
    return search(r).strategy() == v1::SearchOptions::IMPORTED && first(r).node() == "lm_head";
  };
  const std::vector<Case> cases = {
      {{}, [&](const Request& r) { return !search(r).has_budget() && search(r).alpha() == 0; }},
      {{"--budget", "30"}, budget},
      {{"--search-budget", "30"}, budget},
      {{"-budget", "30"}, budget},
      {{"--alpha=0.05"}, alpha},
      {{"--search-alpha", "0.05"}, alpha},
      {{"-alpha", "0.05"}, alpha},
      {{"--import-strategy", exported}, imported},
      {{"--import", exported}, imported},
      {{"-import", exported}, imported},
      {{"--search-from", exported},
       [&](const Request& r) {
         return search(r).strategy() == v1::SearchOptions::SEARCH && search(r).has_imported();
       }},
      {{"--only-data-parallel"},
       [&](const Request& r) { return search(r).strategy() == v1::SearchOptions::DATA_PARALLEL; }},
      // On by default; FlexFlow's are off.
      {{"--enable-parameter-parallel", "--enable-attribute-parallel"},
       [&](const Request& r) {
         return !search(r).disable_parameter_parallel() && !search(r).disable_attribute_parallel();
       }},
      {{"--disable-parameter-parallel"},
       [&](const Request& r) { return search(r).disable_parameter_parallel(); }},
      {{"--disable-attribute-parallel"},
       [&](const Request& r) { return search(r).disable_attribute_parallel(); }},
      {{"--machine-model-file", machine},
       [&](const Request& r) { return r.plan().machine_file() == "{}"; }},
      {{"--machine=a100-cluster", "--search-num-nodes=2", "--search-num-workers=4"},
       [&](const Request& r) {
         return r.plan().machine_preset() == "a100-cluster" && r.plan().machine_devices() == 8;
       }},
      {{"--taskgraph", home_ + "/tasks.dot"},
       [&](const Request& r) { return r.task_graph() && !r.computation_graph(); }},
      {{"--compgraph", home_ + "/graph.dot"},
       [&](const Request& r) { return r.computation_graph() && !r.costs_in_graph(); }},
      {{"--compgraph", home_ + "/graph.dot", "--include-costs-dot-graph"},
       [&](const Request& r) { return r.computation_graph() && r.costs_in_graph(); }},
      {{"--batch-tiles=4"},
       [&](const Request& r) { return search(r).memory().max_batch_tiles() == 4; }},
      {{"-b", "64"}, [&](const Request& r) { return r.plan().batch_size() == 64; }},
  };
  for (const Case& c : cases) {
    std::vector<std::string> args = {"plan", "--model=llama:tiny"};
    args.insert(args.end(), c.flags.begin(), c.flags.end());
    const std::string shown = c.flags.empty() ? "" : c.flags[0];
    ASSERT_EQ(Run(args), kExitOk) << shown << ": " << err_.str();
    EXPECT_TRUE(c.says(fake_.state()->explains.back()))
        << shown << ": " << fake_.state()->explains.back().ShortDebugString();
  }
  for (const auto& [file, text] : {std::pair("/tasks.dot", "digraph tasks {}"),
                                   std::pair("/graph.dot", "digraph operators {}")}) {
    std::ifstream in(home_ + file);
    std::string line;
    EXPECT_TRUE(std::getline(in, line));
    EXPECT_EQ(line, text);
  }
  for (const char* alias : {"--export", "-export", "--export-strategy"}) {
    std::filesystem::remove(exported);
    ASSERT_EQ(Run({"plan", "--model=llama:tiny", alias, exported}), kExitOk) << err_.str();
    EXPECT_TRUE(std::filesystem::exists(exported)) << alias;
  }
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {"--budget=0"},
           {"--budget=-1"},
           {"--batch-tiles=6"},
           {"--only-data-parallel", "--import=" + exported},
           {"--enable-parameter-parallel", "--disable-parameter-parallel"},
           {"--search-num-nodes=2"},
           {"--include-costs-dot-graph"}}) {
    std::vector<std::string> args = {"plan", "--model=llama:tiny"};
    args.insert(args.end(), wrong.begin(), wrong.end());
    EXPECT_EQ(Run(args), kExitUsage) << wrong[0];
    EXPECT_THAT(err_.str(), HasSubstr(wrong[0].substr(0, wrong[0].find('='))));
  }
}

// Otherwise the shown plan would be mistaken for one made with these flags.
TEST_F(CliTest, NewPlanFlagsAreRefusedForExistingPlan) {
  const std::string plan = home_ + "/plan.json";
  const std::string job = fake_.state()->job.id();
  ASSERT_EQ(Run({"plan", "--job=" + job, "--export-strategy=" + plan, "--html=" + plan + ".html"}),
            kExitOk)
      << err_.str();
  EXPECT_TRUE(std::filesystem::exists(plan));
  EXPECT_EQ(Run({"explain", job}), kExitOk) << err_.str();
  const std::vector<std::vector<std::string>> shown = {
      {"plan", "--job=" + job}, {"explain", job}, {"plan", "diff", plan, plan}};
  for (std::vector<std::string> args : shown) {
    for (const char* flag : {"--devices=8", "--budget=3", "--model=llama:tiny", "--precision=bf16",
                             "--batch-size=4", "--job=other"}) {
      if (args[0] == "plan" && args.size() == 2 && std::string(flag) == "--job=other") continue;
      args.push_back(flag);
      EXPECT_EQ(Run(args), kExitUsage) << args[0] << " " << flag;
      EXPECT_THAT(err_.str(), HasSubstr(std::string(flag).substr(0, std::string(flag).find('='))));
      args.pop_back();
    }
  }
  fake_.state()->events.emplace_back().mutable_message()->set_text("resumed from step 40");
  EXPECT_EQ(Run({"jobs", "get", job}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(),
              HasSubstr("  warning: worker w2 \uFFFD[2J lost\n  resumed from step 40\n"));
  EXPECT_EQ(Run({"jobs", "list", "--print-freq=3"}), kExitUsage);
  EXPECT_EQ(Run({"jobs", "get", job, "--print-freq=3"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("jobs watch"));
}

TEST_F(CliTest, DryRunListsAllProblemsAndQueuesNothing) {
  v1::DryRunReply& reply = fake_.state()->dry_run;
  *reply.mutable_plan() = fake_.state()->job.plan();
  auto* memory = reply.add_memory();
  memory->set_needed_bytes(64 << 20);
  memory->set_memory_bytes(128 << 20);
  reply.set_total_steps(1000);
  reply.set_step_seconds(0.01);
  reply.set_total_seconds(10);
  reply.mutable_trained()->set_tensors(1);
  reply.mutable_trained()->set_elements(12);
  reply.mutable_trained()->set_other_tensors(2);
  reply.mutable_trained()->set_other_elements(6);
  v1::ParameterUse* use = reply.add_parameter_uses();
  use->set_name("mean\x1b");
  use->mutable_type()->set_dtype(v1::F32);
  use->mutable_type()->add_dims(3);
  use->set_reason("named like a buffer");
  reply.add_notes("the file holds no Dropout");
  std::vector<std::string> train = {"train",     "--model=llama:tiny", "-d", home_ + "/text.txt",
                                    "--steps=3", "--dry-run"};
  EXPECT_EQ(Run(train), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("64.0 MiB"));
  EXPECT_THAT(out_.str(), HasSubstr("1000 steps of 10.0 ms: 10.0 s"));
  EXPECT_THAT(out_.str(), HasSubstr("nothing was queued"));
  EXPECT_THAT(out_.str(),
              HasSubstr("trains 1 tensor, 12 elements; 2 tensors, 6 elements, are not trained"));
  EXPECT_THAT(out_.str(), HasSubstr("note: the file holds no Dropout"));
  EXPECT_THAT(out_.str(), ::testing::Not(HasSubstr("named like a buffer")));
  train.push_back("--verbose");
  EXPECT_EQ(Run(train), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("mean\uFFFD      f32[3]  no       named like a buffer"));
  train.pop_back();
  EXPECT_EQ(Run({"train", "--model=llama:tiny", "-d", home_ + "/text.txt", "--verbose"}),
            kExitUsage);
  reply.add_problems("operator 'Foo' is not supported");
  reply.add_problems("operator 'Bar' is not supported");
  EXPECT_EQ(Run(train), kExitFailed);
  EXPECT_THAT(out_.str(), HasSubstr("'Foo'"));
  EXPECT_THAT(out_.str(), HasSubstr("'Bar'"));
  EXPECT_THAT(err_.str(), HasSubstr("would not run"));
  std::vector<std::string> json = train;
  json.push_back("--json");
  EXPECT_EQ(Run(json), kExitFailed);
  EXPECT_EQ(Json::parse(out_.str())["would_run"], false);  // one document
  EXPECT_TRUE(fake_.state()->submits.empty());
}

}  // namespace
}  // namespace espalier
