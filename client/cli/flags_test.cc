#include "client/cli/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "client/cli/model_flags.h"
#include "client/cli/search_flags.h"
#include "client/cli/training_flags.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<FlagSpec> Specs() {
  std::vector<FlagSpec> specs = ModelFlags();
  for (auto& s : TrainingFlags()) specs.push_back(s);
  for (auto& s : SearchFlags()) specs.push_back(s);
  return specs;
}

ParsedFlags Good(const std::vector<std::string>& args) {
  auto flags = ParseFlags(Specs(), args);
  EXPECT_TRUE(flags.ok()) << flags.status();
  return flags.ok() ? *flags : ParsedFlags();
}

std::string Bad(const std::vector<std::string>& args) {
  auto flags = ParseFlags(Specs(), args);
  EXPECT_FALSE(flags.ok());
  EXPECT_TRUE(IsUsageError(flags.status()));
  return std::string(flags.status().message());
}

TEST(FlagsTest, AllSpellingsOfAValueMeanTheSame) {
  for (const auto& args : std::vector<std::vector<std::string>>{{"--epochs=7"},
                                                                {"--epochs", "7"},
                                                                {"-e", "7"},
                                                                {"-e7"},
                                                                {"-e=7"},
                                                                {"-e", "1", "--epochs=7"}}) {
    EXPECT_EQ(Good(args).Int("epochs", 0), 7);
  }
  EXPECT_EQ(Good({"--lr=1e-3"}).Number("lr", 0), 1e-3);
  EXPECT_EQ(Good({}).Int("epochs", 3), 3);
  EXPECT_EQ(Good({"--name="}).Text("name", "x"), "");
}

TEST(FlagsTest, SwitchesRepeatedFlagsAndArguments) {
  ParsedFlags flags =
      Good({"a", "--only-data-parallel", "--input", "x=c", "--input=y=d", "-", "--", "--epochs"});
  EXPECT_TRUE(flags.Has("only-data-parallel"));
  EXPECT_THAT(flags.Values("input"), ElementsAre("x=c", "y=d"));
  EXPECT_THAT(flags.positional(), ElementsAre("a", "-", "--epochs"));
  EXPECT_FALSE(Good({"--only-data-parallel", "--no-only-data-parallel"}).Has("only-data-parallel"));
  EXPECT_TRUE(Good({"--no-upload"}).Has("no-upload"));  // a flag of that name, not a negated one
}

TEST(FlagsTest, ErrorsNameTheFlagAndWhatIsAccepted) {
  EXPECT_THAT(Bad({"--epocs=3"}), HasSubstr("did you mean --epochs?"));
  EXPECT_THAT(Bad({"--export-stratgy=x"}), HasSubstr("did you mean --export-strategy?"));
  EXPECT_EQ(Bad({"--zzzzzz"}), "unknown flag --zzzzzz");
  EXPECT_EQ(Bad({"-e", "many"}), "-e is \"many\"; accepted: a whole number from 1 to 1000000000");
  EXPECT_THAT(Bad({"--epochs=0"}), HasSubstr("from 1"));
  EXPECT_THAT(Bad({"--epochs=1.5"}), HasSubstr("whole number"));
  EXPECT_THAT(Bad({"--lr=nan"}), HasSubstr("accepted: a number of at least 0"));
  EXPECT_EQ(Bad({"--epochs"}), "--epochs needs a value: --epochs N");
  EXPECT_EQ(Bad({"--detach-not=1", "--x"}), "unknown flag --detach-not");
  EXPECT_EQ(Bad({"--only-data-parallel=yes"}), "--only-data-parallel takes no value");
  EXPECT_THAT(Bad({"--lr=\x1b[2J"}), HasSubstr("\uFFFD[2J"));
}

TEST(DescribeFlagsTest, AlignsAndShowsShortNames) {
  EXPECT_EQ(DescribeFlags({{"epochs", FlagType::kInt, "N", "times", 'e'},
                           {"json", FlagType::kSwitch, "", "as JSON"}}),
            "  -e, --epochs=N  times\n"
            "      --json      as JSON\n");
}

TEST(TrainingFlagsTest, FillTheSpec) {
  v1::TrainingSpec spec;
  absl::Status status = FillTraining(Good({"-e",
                                           "3",
                                           "-b",
                                           "64",
                                           "--lr=0.02",
                                           "--optimizer=sgd",
                                           "--momentum=0.9",
                                           "--wd=1e-3",
                                           "--clip-norm=1",
                                           "--schedule=cosine",
                                           "--warmup=10",
                                           "--seed=5",
                                           "--checkpoint-every=50",
                                           "--holdout=0.2",
                                           "--name=cnn",
                                           "--input",
                                           "labels=y",
                                           "--budget=100",
                                           "--alpha=0.05",
                                           "--freeze=conv*",
                                           "--freeze=norm.bias",
                                           "--train-only=*",
                                           "--disable-attribute-parallel"}),
                                     &spec);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(spec.epochs(), 3);
  EXPECT_EQ(spec.steps(), 0);
  EXPECT_EQ(spec.batch_size(), 64);
  EXPECT_EQ(spec.optimizer().name(), "sgd");
  EXPECT_EQ(spec.optimizer().attributes().at("momentum").f(), 0.9);
  EXPECT_EQ(spec.optimizer().attributes().at("weight_decay").f(), 1e-3);
  EXPECT_EQ(spec.optimizer().learning_rate().kind(), v1::LearningRateSchedule::COSINE);
  EXPECT_EQ(spec.optimizer().learning_rate().warmup_steps(), 10);
  EXPECT_NEAR(spec.optimizer().learning_rate().floor(), 0.002, 1e-12);
  EXPECT_EQ(spec.dataset().columns().at("labels"), "y");
  EXPECT_EQ(spec.dataset().holdout_fraction(), 0.2);
  EXPECT_EQ(spec.search().seed(), 5u);
  EXPECT_EQ(spec.search().budget(), 100);
  EXPECT_TRUE(spec.search().disable_attribute_parallel());
  EXPECT_FALSE(spec.search().disable_parameter_parallel());
  EXPECT_EQ(spec.output_model(), "cnn");
  ASSERT_EQ(spec.freeze_size(), 2);
  EXPECT_EQ(spec.freeze(1), "norm.bias");
  ASSERT_EQ(spec.train_only_size(), 1);
  EXPECT_EQ(spec.train_only(0), "*");
}

TEST(TrainingFlagsTest, ValidationAndEarlyStopping) {
  v1::TrainingSpec spec;
  ASSERT_TRUE(FillTraining(Good({}), &spec).ok());
  EXPECT_FALSE(spec.has_validation() || spec.has_early_stopping());
  EXPECT_EQ(spec.dataset().holdout_fraction(), 0.1);
  absl::Status status = FillTraining(
      Good({"--validate-every=50", "--early-stop=3,val_accuracy,0.01", "--keep-best"}), &spec);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(spec.validation().every_steps(), 50);
  EXPECT_EQ(spec.early_stopping().patience(), 3);
  EXPECT_EQ(spec.early_stopping().monitor(), "val_accuracy");
  EXPECT_EQ(spec.early_stopping().min_delta(), 0.01);
  EXPECT_TRUE(spec.early_stopping().keep_best());

  for (const char* epochs : {"--validate-every=2epochs", "--validate-every=2 epochs"}) {
    spec.Clear();
    ASSERT_TRUE(FillTraining(Good({epochs}), &spec).ok());
    EXPECT_EQ(spec.validation().every_epochs(), 2);
    EXPECT_EQ(spec.validation().every_steps(), 0);
    EXPECT_FALSE(spec.has_early_stopping());
  }
  spec.Clear();
  ASSERT_TRUE(FillTraining(Good({"--validation=v.npz"}), &spec).ok());
  EXPECT_TRUE(spec.has_validation());
  EXPECT_EQ(spec.dataset().holdout_fraction(), 0) << "the file is validated instead";
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"--validate-every=0"},
                                             {"--validate-every=often"},
                                             {"--validate-every=-1epoch"},
                                             {"--early-stop=0"},
                                             {"--early-stop=3,"},
                                             {"--early-stop=3,val_loss,x"},
                                             {"--early-stop=3,val_loss,-1"},
                                             {"--early-stop=3,val_loss,nan"},
                                             {"--early-stop=3,val_loss,0,0"},
                                             {"--validation=v.npz", "--holdout=0.1"}}) {
    spec.Clear();
    status = FillTraining(Good(wrong), &spec);
    EXPECT_TRUE(IsUsageError(status)) << wrong[0] << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong[0].substr(0, wrong[0].find('='))));
  }
}

TEST(TrainingFlagsTest, Recordings) {
  v1::TrainingSpec spec;
  ASSERT_TRUE(FillTraining(Good({}), &spec).ok());
  EXPECT_FALSE(spec.has_record()) << "adaptive, with the coordinator's limits";
  absl::Status status = FillTraining(
      Good({"--record=adaptive", "--record-overhead=0.02", "--record-bytes=1.5GiB"}), &spec);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(spec.record().mode(), v1::RecordOptions::ADAPTIVE);
  EXPECT_DOUBLE_EQ(spec.record().overhead(), 0.02);
  EXPECT_EQ(spec.record().max_bytes(), int64_t{3} << 29);
  spec.Clear();
  status =
      FillTraining(Good({"--record=every:50", "--record-keep=7", "--record-bytes=20 MB"}), &spec);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(spec.record().mode(), v1::RecordOptions::EVERY);
  EXPECT_EQ(spec.record().every_steps(), 50);
  EXPECT_EQ(spec.record().keep(), 7);
  EXPECT_EQ(spec.record().max_bytes(), 20'000'000);
  spec.Clear();
  ASSERT_TRUE(FillTraining(Good({"--record=off"}), &spec).ok());
  EXPECT_EQ(spec.record().mode(), v1::RecordOptions::OFF);

  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--record=on"}, "accepted: off, adaptive, every:N"},
      {{"--record=every:0"}, "accepted: off, adaptive, every:N"},
      {{"--record=every:"}, "accepted: off, adaptive, every:N"},
      {{"--record-bytes=many"}, "accepted: a size, as 20GiB"},
      {{"--record-bytes=-1GB"}, "accepted: a size, as 20GiB"},
      {{"--record-bytes=1e30TB"}, "accepted: a size, as 20GiB"},
      {{"--record=off", "--record-keep=3"}, "--record-keep limits what --record=off"},
      {{"--record=every:5", "--record-overhead=0.1"}, "goes with --record=adaptive"},
      {{"--record=every:5", "--checkpoint-every=6"}, "give one of them"},
  };
  for (const auto& [flags, message] : wrong) {
    status = FillTraining(Good(flags), &spec);
    EXPECT_TRUE(IsUsageError(status)) << flags[0];
    EXPECT_NE(status.message().find(message), std::string::npos) << status;
  }
}

TEST(TrainingFlagsTest, PipelinesAndMicroBatches) {
  v1::TrainingSpec spec;
  ASSERT_TRUE(FillTraining(Good({}), &spec).ok());
  EXPECT_FALSE(spec.search().has_micro_batches());
  EXPECT_EQ(spec.search().pipeline_stages(), 0);
  absl::Status status = FillTraining(Good({"--pipeline-stages=4", "--micro-batches=16"}), &spec);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(spec.search().micro_batches(), 16);
  EXPECT_EQ(spec.search().pipeline_stages(), 4);
  EXPECT_THAT(Bad({"--micro-batches=0"}), HasSubstr("--micro-batches"));
}

// Without the flag the planner chooses; 0 is an explicit choice.
TEST(TrainingFlagsTest, ZeroStage) {
  v1::TrainingSpec spec;
  ASSERT_TRUE(FillTraining(Good({}), &spec).ok());
  EXPECT_FALSE(spec.search().has_zero_stage());
  for (int stage : {0, 3}) {
    absl::Status status = FillTraining(Good({"--zero-stage=" + std::to_string(stage)}), &spec);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(spec.search().has_zero_stage());
    EXPECT_EQ(spec.search().zero_stage(), stage);
  }
  EXPECT_THAT(Bad({"--zero-stage=4"}), HasSubstr("accepted: a whole number from 0 to 3"));
}

TEST(TrainingFlagsTest, MemoryByTflmsNames) {
  v1::TrainingSpec spec;
  ASSERT_TRUE(FillTraining(Good({}), &spec).ok());
  EXPECT_FALSE(spec.search().has_memory());  // an imported plan has its own
  absl::Status status = FillTraining(
      Good({"--swapout-threshold=9", "--swapin-ahead=3", "--swapin-groupby=2", "--sync-mode=3",
            "--host-memory=0.5", "--host-bandwidth=12", "--no-recompute"}),
      &spec);
  ASSERT_TRUE(status.ok()) << status;
  const v1::MemoryOptions& memory = spec.search().memory();
  EXPECT_EQ(memory.swapout_threshold(), 9);
  EXPECT_EQ(memory.swapin_ahead(), 3);
  EXPECT_EQ(memory.swapin_groupby(), 2);
  EXPECT_EQ(memory.sync_mode(), 3);
  EXPECT_EQ(memory.host_bytes(), int64_t{1} << 29);
  EXPECT_EQ(memory.host_bandwidth(), 12e9);
  EXPECT_TRUE(memory.disable_recompute());
  EXPECT_FALSE(memory.disable_swap());
  status = FillTraining(Good({"--no-swap", "--sync-mode=1"}), &spec);
  EXPECT_NE(std::string(status.message()).find("--sync-mode"), std::string::npos) << status;
}

TEST(TrainingFlagsTest, OptimisersSchedulesAndPenalties) {
  v1::TrainingSpec spec;
  absl::Status status =
      FillTraining(Good({"--optimizer=rmsprop:alpha=0.9,centered=true", "--schedule=step",
                         "--lr-step=30", "--l2=1e-4", "--l1=fc*:0.5", "--report-penalties"}),
                   &spec);
  ASSERT_TRUE(status.ok()) << status;
  const v1::Optimizer& optimizer = spec.optimizer();
  EXPECT_EQ(optimizer.name(), "rmsprop");
  EXPECT_EQ(optimizer.attributes().at("alpha").f(), 0.9);
  EXPECT_TRUE(optimizer.attributes().at("centered").b());
  EXPECT_EQ(optimizer.learning_rate().peak(), 0.01);
  EXPECT_EQ(optimizer.learning_rate().step_size(), 30);
  EXPECT_EQ(optimizer.learning_rate().gamma(), 0.1);
  ASSERT_EQ(optimizer.regularizers_size(), 2);
  EXPECT_EQ(optimizer.regularizers(0).parameter(), "fc*");
  EXPECT_EQ(optimizer.regularizers(0).l1(), 0.5);
  EXPECT_EQ(optimizer.regularizers(1).l2(), 1e-4);
  EXPECT_TRUE(optimizer.report_penalties());
}

TEST(TrainingFlagsTest, GroupsAndWarmup) {
  v1::TrainingSpec spec;
  const absl::Status status =
      FillTraining(Good({"--optimizer=adamw", "--lr=0.1", "--warmup=10", "--warmup-from=0.001",
                         "--parameter-group=*.bias,norm*:wd=0", "--parameter-group=head.*:lr=2"}),
                   &spec);
  ASSERT_TRUE(status.ok()) << status;
  const v1::Optimizer& optimizer = spec.optimizer();
  EXPECT_EQ(optimizer.learning_rate().warmup_from(), 0.001);
  EXPECT_EQ(optimizer.learning_rate().warmup_steps(), 10);
  ASSERT_EQ(optimizer.groups_size(), 2);
  const v1::ParameterGroup& first = optimizer.groups(0);
  EXPECT_THAT(first.parameters(), ElementsAre("*.bias", "norm*"));
  EXPECT_TRUE(first.has_weight_decay());
  EXPECT_EQ(first.weight_decay(), 0);
  EXPECT_FALSE(first.has_learning_rate_scale());
  EXPECT_EQ(optimizer.groups(1).learning_rate_scale(), 2);
}

TEST(TrainingFlagsTest, ContradictionsAreRefused) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--epochs=1", "--steps=1"}, "not both"},
      {{"--momentum=0.9"}, "--momentum needs an --optimizer that has it: rmsprop, sgd"},
      {{"--min-lr=0.1"}, "--min-lr needs a --schedule that decays"},
      {{"--steps=5", "--warmup=6"}, "more than all 5 steps"},
      {{"--only-data-parallel", "--single-device"}, "at most one"},
      {{"--enable-parameter-parallel", "--disable-parameter-parallel"}, "exclude each other"},
      {{"--optimizer=lamb"}, "accepted: adafactor, adagrad, adam, adamw, lion, rmsprop, sgd"},
      {{"--optimizer=adam:beta3=1"}, "KEY=VALUE with beta1, beta2"},
      {{"--optimizer=adam:beta1=x"}, "beta1 is \"x\"; accepted: a number"},
      {{"--optimizer=adam:beta1=2"}, "'beta1'"},
      {{"--optimizer=sgd", "--nesterov"}, "momentum above 0"},
      {{"--schedule=step"}, "--schedule=step needs --lr-step"},
      {{"--lr-power=2"}, "--lr-power needs --schedule=polynomial"},
      {{"--schedule=one-cycle", "--warmup=5"}, "exclude each other"},
      {{"--l2=fc:x"}, "PARAMETER:X"},
      {{"--warmup-from=0.1"}, "--warmup-from needs --warmup"},
      {{"--parameter-group=bias"}, "accepted: NAMES:KEY=X"},
      {{"--parameter-group=bias:momentum=1"}, "keys lr (times --lr) and wd"},
      {{"--parameter-group=:lr=1"}, "NAMES:KEY=X"},
      {{"--report-penalties"}, "needs --l1 or --l2"},
      {{"--input=x"}, "NAME=COLUMN"},
      {{"--import-strategy=/nonexistent"}, "cannot read"}};
  for (const auto& [args, message] : cases) {
    v1::TrainingSpec spec;
    absl::Status status = FillTraining(Good(args), &spec);
    EXPECT_TRUE(IsUsageError(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(FlagsTest, UnreadableOrEmptyFileIsUsageError) {
  const std::string file = ::testing::TempDir() + "/read_file_test";
  std::ofstream(file, std::ios::binary) << std::string("a\0\r\nb", 5);
  EXPECT_EQ(ReadFile(file).value(), std::string("a\0\r\nb", 5));
  EXPECT_EQ(ReadNonemptyFile(file).value(), std::string("a\0\r\nb", 5));
  std::ofstream(file, std::ios::trunc).flush();
  EXPECT_EQ(ReadFile(file).value(), "");
  const absl::Status empty = ReadNonemptyFile(file).status();
  EXPECT_TRUE(IsUsageError(empty));
  EXPECT_THAT(std::string(empty.message()), HasSubstr("is empty"));
  EXPECT_TRUE(IsUsageError(ReadFile(testing::TempDir()).status())) << "a folder";
  for (const auto& read : {ReadFile("/nonexistent/\x1b[2J"), ReadNonemptyFile("/nonexistent")}) {
    EXPECT_TRUE(IsUsageError(read.status()));
    EXPECT_THAT(std::string(read.status().message()), HasSubstr("cannot read /nonexistent"));
    EXPECT_THAT(std::string(read.status().message()), Not(HasSubstr("\x1b")));
  }
}

TEST(ModelFlagsTest, PresetsAndKeys) {
  auto llm = ParseLlama("llm");
  auto ssm = ParseLlama("ssm");
  ASSERT_TRUE(llm.ok() && ssm.ok());
  EXPECT_GE(CountParameters(*llm), 4'000'000);
  EXPECT_LE(CountParameters(*llm), 8'000'000);
  EXPECT_NEAR(
      static_cast<double>(CountParameters(*ssm)) / static_cast<double>(CountParameters(*llm)), 0.1,
      0.02);

  auto changed = ParseLlama("llm,layers=4,tied=true");
  ASSERT_TRUE(changed.ok());
  EXPECT_EQ(changed->num_layers, 4);
  EXPECT_EQ(changed->hidden_size, 256);
  EXPECT_TRUE(changed->tie_word_embeddings);

  auto own = ParseLlama("hidden=96,layers=3,heads=6");
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(own->head_dim, 16);
  EXPECT_EQ(own->num_kv_heads, 6);
  EXPECT_EQ(own->intermediate_size, 256);
}

TEST(ModelFlagsTest, MistakesAreNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"lmm", "llm, medium, ssm, tiny"},
      {"hiden=4", "did you mean hidden?"},
      {"hidden=100,layers=1,heads=3", "no multiple"},
      {"hidden=64,layers=1,heads=x", "heads is \"x\""},
      {"hidden=64,heads=2", "num_hidden_layers is 0"},
      {"llm,kv_heads=3", "num_key_value_heads is 3"}};
  for (const auto& [text, message] : cases) {
    auto config = ParseLlama(text);
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_TRUE(IsUsageError(config.status()));
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(message));
  }
}

TEST(ModelFlagsTest, ExactlyOneModel) {
  EXPECT_TRUE(IsUsageError(ChooseModel(Good({})).status()));
  EXPECT_TRUE(IsUsageError(ChooseModel(Good({"--model=llama:tiny", "--onnx=x"})).status()));
  EXPECT_THAT(std::string(ChooseModel(Good({"--model=gpt:tiny"})).status().message()),
              HasSubstr("llama:PRESET"));
  auto tiny = ChooseModel(Good({"--model=llama:tiny", "--sequence-length=32"}));
  ASSERT_TRUE(tiny.ok()) << tiny.status();
  EXPECT_EQ(tiny->sequence_length, 32);
  EXPECT_EQ(tiny->graph.metadata().at("family"), "llama");
}

}  // namespace
}  // namespace espalier
