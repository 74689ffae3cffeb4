// The commands that run jobs, and behavior shared by all commands.
#include <cmath>
#include <ostream>
#include <streambuf>

#include "client/cli/bench/stats.h"
#include "client/cli/cli_fixture.h"
#include "client/cli/job_view.h"
#include "client/cli/proto_json.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(CliTest, TrainSubmitsWhatTheFlagsSayAndEndsWithTheJob) {
  EXPECT_EQ(Run({"train", "--json", "--model=llama:tiny", "--sequence-length=16", "-d",
                 home_ + "/text.txt", "-b", "8", "--steps=3", "--name=llm"}),
            kExitOk)
      << err_.str();
  std::vector<Json> lines = Lines();
  ASSERT_EQ(lines.size(), 7u) << out_.str();
  EXPECT_EQ(lines.front()["job_id"], "job-1");
  EXPECT_EQ(lines[1]["job"]["state"], "RUNNING");
  EXPECT_EQ(lines[2]["step"]["values"]["loss"], 3.0);
  EXPECT_EQ(lines.back()["done"]["state"], "SUCCEEDED");
  EXPECT_EQ(lines.back()["done"]["total_steps"], 3);

  ASSERT_EQ(fake_.state()->submits.size(), 1u);
  const v1::TrainingSpec& spec = fake_.state()->submits[0].spec();
  EXPECT_EQ(spec.batch_size(), 8);
  EXPECT_EQ(spec.dataset().format(), v1::Dataset::TEXT);
  EXPECT_EQ(spec.dataset().sequence_length(), 16);
  EXPECT_EQ(spec.graph().metadata().at("family"), "llama");
  const std::string name = spec.dataset().uri().substr(9);
  EXPECT_EQ(spec.dataset().uri(), "artifact:" + name);
  EXPECT_EQ(fake_.state()->files[name]["text.txt"], std::string(5000, 'a'));
}

TEST_F(CliTest, TrainShowsPlanLossAndWhatWasMeasured) {
  fake_.state()->submit_status =
      absl::InvalidArgumentError("spec.output_model: artifact name 'a b': 1 to 128 characters");
  EXPECT_EQ(Run({"train", "--model=llama:tiny", "-d", home_ + "/text.txt", "--name=a b"}),
            kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("--name: artifact name 'a b'"));
  fake_.state()->submit_status = absl::OkStatus();
  EXPECT_EQ(Run({"train", "--model=llama:tiny", "-d", home_ + "/text.txt", "--steps=3", "-p", "1"}),
            kExitOk)
      << err_.str();
  const std::string text = out_.str();
  EXPECT_THAT(text, HasSubstr("data parallel"));
  EXPECT_THAT(text, HasSubstr("1.50"));  // relative to this plan's step
  EXPECT_THAT(text, HasSubstr("1 sample=2"));
  EXPECT_THAT(text, HasSubstr("step 2/3  66%  loss 2.0000  205 k tok/s"));
  EXPECT_THAT(text, HasSubstr("\nwarning: worker w2 \uFFFD[2J lost\n"));
  EXPECT_THAT(
      text,
      HasSubstr("job job-1 succeeded in 2.50 s: 3 steps of 2.05 k tokens, 4.56 M parameters"));
  EXPECT_THAT(text, HasSubstr("10.0 ms   11.0 ms  +10 %"));
  EXPECT_THAT(text, HasSubstr("held-out: loss 0.6931 (1.000 bits per byte)"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST_F(CliTest, TrainShowsValidationsAndTheBestOne) {
  v1::Job& job = fake_.state()->job;
  job.set_best_step(2);
  (*job.mutable_best_validation())["val_loss"] = 1.5;
  (*job.mutable_best_validation())["val_accuracy"] = 0.625;
  job.mutable_spec()->mutable_early_stopping()->set_keep_best(true);
  job.set_stopped_early(true);
  job.set_total_steps(10);
  v1::JobEvent validation;
  validation.mutable_validation()->set_step(1);
  *validation.mutable_validation()->mutable_values() = job.best_validation();
  std::vector<v1::JobEvent>& events = fake_.state()->events;
  events.insert(events.begin() + 3, validation);  // behind step 1
  const std::vector<std::string> train = {
      "train", "--model=llama:tiny", "-d", home_ + "/text.txt", "--steps=10", "-p",
      "1",     "--keep-best"};
  EXPECT_EQ(Run(train), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("validation after 2 steps: val_accuracy 62.50 %, val_loss "
                                    "1.5000"));
  EXPECT_THAT(out_.str(), HasSubstr("loss 1.0000  val_loss 1.5000"));
  EXPECT_THAT(out_.str(), HasSubstr("3 of 10 steps of"));
  EXPECT_THAT(out_.str(), HasSubstr("best validation after 2 steps: val_accuracy 62.50 %, val_loss "
                                    "1.5000, kept"));
  EXPECT_TRUE(fake_.state()->submits[0].spec().early_stopping().keep_best());
  EXPECT_TRUE(fake_.state()->submits[0].spec().has_validation());

  EXPECT_EQ(Run({"jobs"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("best step"));
  EXPECT_EQ(Run({"jobs", "watch", "job-1", "--json"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr(R"({"validation":{"step":1,"values":{"val_accuracy":0.625)"));
  EXPECT_EQ(Run({"explain", "job-1"}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("best validation after 2 steps"));
  EXPECT_THAT(out_.str(), HasSubstr("training stopped early"));
  EXPECT_EQ(Run({"explain", "job-1", "--json"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr(R"("best_step": 2)"));
}

TEST_F(CliTest, MessagesSayTheirLevel) {
  v1::JobMessage* detail = fake_.state()->events.emplace_back().mutable_message();
  detail->set_text("fused: gelu 2");
  detail->set_level(v1::JobMessage::DETAIL);
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"jobs", "watch", "job-1"}, {"logs", "job-1"}}) {
    EXPECT_EQ(Run(args), kExitOk) << err_.str();
    EXPECT_THAT(out_.str(), HasSubstr("\nwarning: worker w2 \uFFFD[2J lost\nfused: gelu 2\n"));
    std::vector<std::string> with_json = args;
    with_json.push_back("--json");
    EXPECT_EQ(Run(with_json), kExitOk) << err_.str();
    EXPECT_THAT(out_.str(),
                HasSubstr(R"({"message":{"text":"fused: gelu 2","level":"DETAIL","unix_ms":0}})"));
    EXPECT_THAT(out_.str(), HasSubstr(R"( lost","level":"WARNING","unix_ms":0}})"));
  }
  EXPECT_EQ(Run({"jobs", "get", "job-1", "--json"}), kExitOk) << err_.str();
  EXPECT_EQ(Json::parse(out_.str())["messages"][1]["level"], "DETAIL");
}

TEST_F(CliTest, AFailedJobIsAFailure) {
  fake_.state()->job.set_state(v1::FAILED);
  fake_.state()->job.set_error("step 2: NaN in the loss");
  EXPECT_EQ(Run({"jobs", "watch", "job-1"}), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("step 2: NaN in the loss"));
  EXPECT_EQ(Run({"jobs", "get", "job-9"}), kExitNotFound);
}

TEST_F(CliTest, UnreachableCoordinatorHasItsOwnExitCode) {
  EXPECT_EQ(Run({"status", "--coordinator=127.0.0.1:1"}, false), kExitUnreachable);
  EXPECT_THAT(err_.str(), HasSubstr("127.0.0.1:1"));
  EXPECT_THAT(err_.str(), HasSubstr("espalier up"));
  EXPECT_EQ(Run({"jobs", "--coordinator=127.0.0.1:1", "--json"}, false), kExitUnreachable);
  EXPECT_EQ(Json::parse(out_.str())["error"]["code"], "UNAVAILABLE");
}

// Otherwise their bytes would silently be trained on as text.
TEST_F(CliTest, DatasetsOfUnsupportedFormatsAreRefused) {
  using namespace std::string_literals;
  const std::pair<const char*, std::string> files[] = {
      {"a.parquet", "PAR1\x15\x04\x15\x00\x15"s},
      {"a.tar", "data.txt" + std::string(92, '\0') + "0000644"},
      {"train-images-idx3-ubyte", "\0\0\x08\x03\0\0"s},
      {"renamed.bin", "PK\x03\x04\x14\0"s}};
  for (const auto& [name, bytes] : files) {
    const std::string path = home_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    EXPECT_EQ(Run({"train", "--model=llama:tiny", "-d", path, "--steps=3"}), kExitUsage) << name;
    EXPECT_THAT(err_.str(), HasSubstr(name));
    EXPECT_THAT(err_.str(), HasSubstr("accepted: text, or arrays"));
  }
  EXPECT_TRUE(fake_.state()->submits.empty());
  // The content decides, not the file name.
  std::ofstream(home_ + "/a.csv") << std::string(500, ',');
  EXPECT_EQ(Run({"train", "--model=llama:tiny", "-d", home_ + "/a.csv", "--steps=3", "--detach"}),
            kExitOk)
      << err_.str();
  EXPECT_EQ(Run({"train", "--model=llama:tiny", "-d", home_ + "/a.tar", "--dataset-format=text",
                 "--steps=3", "--detach"}),
            kExitOk)
      << err_.str();
}

TEST_F(CliTest, WrongUsageIsSaidBeforeAnythingIsSent) {
  const std::vector<std::vector<std::string>> wrong = {
      {"trian"},
      {"train"},
      {"train", "--model=llama:tiny"},
      {"train", "--model=llama:tiny", "-d", "/nonexistent.txt"},
      {"train", "--model=llama:tiny", "-d", "x", "stray"},
      {"jobs", "cancle", "job-1"},
      {"jobs", "get"},
      {"generate", "llm"},
      {"generate", "llm", "hi", "--compare", "--temperature=1"},
      {"serve", "llm", "--expansion=1,x", "--ssm=s"},
      {"serve", "llm", "--ssm=s", "--tune", "--expansion=1,1,3"},
      {"serve", "llm", "--adapter=poet"},
      {"serve", "--ssm=s"},
      {"embed", "llm"},
      {"models", "upload", "x"},
      {"models", "quantize", "x", "--weights=int8"},
      {"models", "delete", "x", "--out=y"},
      {"models", "list", "--kind=modle"},
      {"models", "download", "x", "--replace"},
      {"models", "upload", "x", "y", "--force"},
      {"logs", "job-1", "--lines=3"},
      {"logs", "--print-freq=3"},
      {"train", "--init=m", "-d", "x", "--loss=mean_squared_error"},
      {"train", "--model=llama:tiny", "-d", "x", "--metrics=none"},
      {"verify-lossless", "--llm=x"},
      {"verify-lossless", "--ssm=x"},
      {"verify-lossless", "--llm=x", "--ssm=/nonexistent/folder"},
      {"verify-lossless", "--llm=x", "--ssm=y", "--tune", "--expansion=2"},
      {"verify-lossless", "--llm=x", "--ssm=y", "--prompts-from=/nonexistent"},
      {"plan", "--model=llama:tiny", "--devices=2", "--device-preset=abacus"},
      {"status", "--coordinator=nowhere"}};
  for (const auto& args : wrong) {
    EXPECT_EQ(Run(args, args.back().rfind("--coordinator", 0) != 0), kExitUsage)
        << args[0] << ": " << err_.str();
    EXPECT_THAT(err_.str(), HasSubstr("espalier help"));
  }
  EXPECT_TRUE(fake_.state()->submits.empty());
  Run({"trian"});
  EXPECT_THAT(err_.str(), HasSubstr("did you mean train?"));
}

TEST_F(CliTest, PredictionsAreWrittenToNamesOfNpzOnly) {
  for (const char* out : {"out.npy", "out.txt", "out", "npz"}) {
    EXPECT_EQ(Run({"predict", "m", "-d", home_ + "/missing.npz", "-o", out}), kExitUsage);
    EXPECT_THAT(err_.str(), HasSubstr("ends in .npz")) << out;
  }
  EXPECT_EQ(Run({"predict", "m", "-d", home_ + "/missing.npz", "-o", "out.npz"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("missing.npz"));
  EXPECT_THAT(err_.str(), Not(HasSubstr("ends in .npz")));
}

TEST_F(CliTest, FlagsOfAllCommandsMayStandBeforeTheCommand) {
  EXPECT_EQ(Run({"--coordinator", fake_.address(), "--json", "jobs", "list"}, false), kExitOk)
      << err_.str();
  EXPECT_TRUE(Json::parse(out_.str()).contains("jobs")) << out_.str();
  EXPECT_EQ(Run({"--coordinator=" + fake_.address(), "--steps=3", "jobs"}, false), kExitUsage);
  EXPECT_EQ(Run({"--json"}, false), kExitUsage);
}

TEST_F(CliTest, EveryCommandHasHelpWithExamples) {
  for (const Command& command : AllCommands()) {
    EXPECT_EQ(Run({command.name, "--help"}, false), kExitOk);
    EXPECT_THAT(out_.str(), HasSubstr("Usage: espalier " + command.name));
    EXPECT_EQ(command.examples.empty(), command.name == "version");
  }
}

TEST_F(CliTest, LossesNameOutputsWeightsAndAttributes) {
  const std::string onnx = "artifact:m", data = "artifact:d";
  const auto objective = [&](std::vector<std::string> flags) {
    std::vector<std::string> args = {"train", "--onnx=" + onnx,       "-d",
                                     data,    "--dataset-format=npz", "--detach"};
    args.insert(args.end(), flags.begin(), flags.end());
    EXPECT_EQ(Run(args), kExitOk) << err_.str();
    return fake_.state()->submits.back().spec().objective();
  };
  v1::Objective plain = objective({});
  ASSERT_EQ(plain.losses_size(), 1);
  EXPECT_EQ(plain.losses(0).op(), "sparse_categorical_crossentropy");
  EXPECT_FALSE(plain.losses(0).has_weight());
  ASSERT_EQ(plain.metrics_size(), 1);
  EXPECT_EQ(plain.metrics(0).op(), "accuracy");
  const v1::Objective two =
      objective({"--loss=binary_crossentropy:from_logits=false", "--loss-output=Identity:0",
                 "--loss=mean_squared_error@other:0.25",
                 "--metrics=top_k_accuracy:k=3,ignore_index=7@aux,mean_absolute_error"});
  ASSERT_EQ(two.losses_size(), 2);
  EXPECT_EQ(two.losses(0).output(), "Identity:0");
  EXPECT_FALSE(two.losses(0).attributes().at("from_logits").b());
  EXPECT_EQ(two.losses(1).output(), "other");
  EXPECT_EQ(two.losses(1).weight(), 0.25);
  ASSERT_EQ(two.metrics_size(), 2);
  EXPECT_EQ(two.metrics(0).output(), "aux");
  EXPECT_EQ(two.metrics(0).attributes().at("k").i(), 3);
  EXPECT_EQ(two.metrics(0).attributes().at("ignore_index").i(), 7);
  EXPECT_EQ(two.metrics(1).op(), "mean_absolute_error");

  const v1::Objective weighted = objective(
      {"--loss=sparse_categorical_crossentropy:axis=1,class_weights=0.2,0,5,ignore_index=0@y:2"});
  EXPECT_THAT(weighted.losses(0).class_weights(), ElementsAre(0.2F, 0, 5));
  EXPECT_EQ(weighted.losses(0).attributes().at("axis").i(), 1);
  EXPECT_EQ(weighted.losses(0).attributes().at("ignore_index").i(), 0);
  EXPECT_EQ(weighted.losses(0).weight(), 2);

  const size_t sent = fake_.state()->submits.size();
  for (const char* wrong :
       {"--loss=sparse_categorical_crossentropy:class_weights=1,-2",
        "--loss=sparse_categorical_crossentropy:class_weights=1,nan",
        "--loss=sparse_categorical_crossentropy:class_weights=",
        "--loss=mean_squared_error:class_weights=1,2",
        "--metrics=sparse_categorical_crossentropy:class_weights=1", "--loss=hinge",
        "--loss=accuracy", "--loss=mean_squared_error@", "--metrics=f1",
        "--loss=mean_squared_error@y:0", "--loss=binary_crossentropy:from_logits=maybe",
        "--loss=binary_crossentropy:smoothing=0.1", "--metrics=top_k_accuracy:k=three"}) {
    EXPECT_EQ(
        Run({"train", "--onnx=" + onnx, "-d", data, "--dataset-format=npz", "--detach", wrong}),
        kExitUsage)
        << wrong;
    EXPECT_THAT(err_.str(), HasSubstr("accepted")) << wrong;
  }
  EXPECT_EQ(fake_.state()->submits.size(), sent);
}

// Accepts a limited number of bytes, like a full disk or a closed pipe.
class ShortBuffer : public std::streambuf {
 public:
  explicit ShortBuffer(int room) : room_(room) {}

 protected:
  int_type overflow(int_type c) override { return room_-- > 0 ? c : traits_type::eof(); }

 private:
  int room_;
};

TEST_F(CliTest, OutputThatCannotBeWrittenIsAFailure) {
  for (const bool gone : {false, true}) {
    ShortBuffer room(10);
    std::ostream out(&room);
    sink_ = &out;
    output_closed_ = gone;
    EXPECT_EQ(Run({"help"}), gone ? kExitBrokenPipe : kExitFailed);
    EXPECT_EQ(err_.str().find("cannot be written") == std::string::npos, gone) << err_.str();
  }
}

// Regression: the model generated to the end though nobody read it.
TEST_F(CliTest, StreamEndsWithItsReader) {
  const std::string piece(1000, 'x');
  fake_.state()->replies.assign(20'000, Piece(piece));
  v1::JobEvent event;
  event.mutable_message()->set_text(piece);
  fake_.state()->events.insert(fake_.state()->events.end(), 20'000, event);
  output_closed_ = true;
  int broken_off = 0;
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"generate", "llm", "x"},
                                             {"generate", "llm", "x", "--json"},
                                             {"chat", "llm", "x"},
                                             {"chat", "llm", "x", "--json"},
                                             {"logs", "job-1"},
                                             {"logs", "job-1", "--follow"},
                                             {"jobs", "watch", "job-1"}}) {
    ShortBuffer room(3000);
    std::ostream out(&room);
    sink_ = &out;
    EXPECT_EQ(Run(args), kExitBrokenPipe) << args[0];
    EXPECT_EQ(err_.str(), "") << args[0];
    ++broken_off;
    const absl::Time end = absl::Now() + absl::Seconds(20);
    while (fake_.state()->broken_off < broken_off && absl::Now() < end) {
      absl::SleepFor(absl::Milliseconds(2));
    }
    ASSERT_EQ(fake_.state()->broken_off, broken_off) << args[0];
  }
}

TEST_F(CliTest, StatusShowsWorkersAndIsJsonForScripts) {
  v1::ClusterStatusReply& status = fake_.state()->status;
  status.set_version("0.1.0");
  (*status.mutable_jobs_by_state())["RUNNING"] = 1;
  auto* worker = status.add_workers();
  worker->set_name("w1");
  worker->set_worker_id("w7");
  worker->set_state(v1::WorkerInfo::BUSY);
  worker->mutable_device()->set_memory_bytes(int64_t{4} << 30);
  EXPECT_EQ(Run({"status"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("jobs: 1 running"));
  EXPECT_THAT(out_.str(), HasSubstr("w1      w7  busy"));
  EXPECT_THAT(out_.str(), HasSubstr("4.00 GiB"));
  EXPECT_EQ(Run({"status", "--json"}), kExitOk);
  Json json = Json::parse(out_.str());
  EXPECT_EQ(json["workers"][0]["state"], "BUSY");
  EXPECT_EQ(json["workers"][0]["device"]["memory_bytes"], int64_t{4} << 30);
}

TEST_F(CliTest, WorkersThatAreGoneAreOneLineOfStatus) {
  const auto add = [&](const std::string& id, v1::WorkerInfo::State state) {
    auto* worker = fake_.state()->status.add_workers();
    worker->set_name("host");
    worker->set_worker_id(id);
    worker->set_state(state);
  };
  add("w1", v1::WorkerInfo::LEFT);
  EXPECT_EQ(Run({"status"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("no workers are there any more; start some: "));
  EXPECT_THAT(out_.str(),
              HasSubstr("1 worker has left in order in the last 10 minutes: --all shows it\n"));
  add("w2", v1::WorkerInfo::DEAD);
  add("w3", v1::WorkerInfo::DEAD);
  add("w4", v1::WorkerInfo::DRAINING);
  EXPECT_EQ(Run({"status"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("host    w4  leaving"));
  EXPECT_THAT(out_.str(), Not(HasSubstr("w2")));
  EXPECT_THAT(out_.str(), HasSubstr("\n3 workers have left in order (1) or died (2) in the last 10 "
                                    "minutes: --all shows them\n"));
  EXPECT_EQ(Run({"status", "--all"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("host    w1  left"));
  EXPECT_THAT(out_.str(), HasSubstr("host    w2  dead"));
  EXPECT_THAT(out_.str(), Not(HasSubstr("minutes")));
  EXPECT_EQ(Run({"status", "--json"}), kExitOk);
  EXPECT_EQ(Json::parse(out_.str())["workers"].size(), 4u);
}

TEST(SmoothTest, KeepsEndsAndMeans) {
  std::vector<std::pair<double, double>> points;
  for (int i = 0; i < 100; ++i) points.emplace_back(i, i);
  auto smooth = Smooth(points, 10);
  ASSERT_EQ(smooth.size(), 10u);
  EXPECT_EQ(smooth.front(), (std::pair<double, double>(0, 4.5)));
  EXPECT_EQ(smooth.back(), (std::pair<double, double>(99, 94.5)));
  EXPECT_EQ(Smooth(points, 100).size(), 100u);
}

TEST(StatsTest, PercentilesInterpolate) {
  const Stats s = StatsOf({4, 1, 3, 2});
  EXPECT_EQ(s.mean, 2.5);
  EXPECT_EQ(s.median, 2.5);
  EXPECT_NEAR(s.Percentile(90), 3.7, 1e-12);
  EXPECT_EQ(s.Percentile(0), 1);
  EXPECT_EQ(s.Percentile(100), 4);
  EXPECT_NEAR(s.deviation, 1.29099, 1e-5);
  EXPECT_NEAR(s.spread, 1.11803, 1e-5);
  EXPECT_EQ(StatsOf({}).Percentile(99), 0);
  EXPECT_EQ(StatsOf({5}).deviation, 0);
}

TEST(ProtoJsonTest, NumbersAreNumbersAndNanIsNamed) {
  v1::StepReport step;
  step.set_step(int64_t{1} << 40);
  (*step.mutable_values())["loss"] = NAN;
  (*step.mutable_values())["accuracy"] = 0.5;
  EXPECT_EQ(Dump(ToJson(step)),
            R"({"step":1099511627776,"values":{"accuracy":0.5,"loss":"NaN"},"seconds":0.0,)"
            R"("tensors":{},"unix_ms":0})");
}

}  // namespace
}  // namespace espalier
