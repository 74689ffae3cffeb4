// `espalier history` and the formats it writes.
#include <bit>
#include <cmath>
#include <limits>

#include "client/cli/cli_fixture.h"
#include "client/cli/history/sample_rows.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class CliHistoryTest : public CliTest {
 protected:
  static std::string Read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string Path(const std::string& name) const { return home_ + "/" + name; }
};

TEST_F(CliHistoryTest, TheTableSaysWhatEverySeriesIs) {
  fake_.state()->history = {
      ScalarRow(1, 0, "loss", 4),
      ScalarRow(1, 1, "loss", NAN),
      ScalarRow(1, 2, "loss", 1.5),
      ScalarRow(2, 5, "loss", 3),
      ScalarRow(1, 2, "grad(w\x1b[2J)", 0.25, "norm"),
      HistogramRow(1, 1, "relu_1", -1, 1, {1, 2}),
      HistogramRow(1, 2, "relu_1", -2, 0.5, {1, 2}),
      TensorRow<float>(1, 2, "w", "full", v1::F32, {1, 2}, {1, 2}),
  };
  EXPECT_EQ(Run({"history", "lm@*"}), kExitOk) << err_.str();
  const std::string table = out_.str();
  EXPECT_THAT(table,
              HasSubstr("\nlm@1  loss                  forward  0 to 2 (3)     4.0000  1.5000  "
                        " 1.5000  4.0000\n"));
  EXPECT_THAT(table, HasSubstr("\nlm@2  loss                  forward       5 (1)  "));
  EXPECT_THAT(table, HasSubstr("norm(grad(w\uFFFD[2J))"));
  EXPECT_THAT(table,
              HasSubstr("\nlm@1  histogram(relu_1, 2)  replay   1 to 2 (2)   2 ranges        "
                        "  -2.0000  1.0000\n"));
  EXPECT_THAT(table, HasSubstr("f32[1, 2]"));
}

TEST_F(CliHistoryTest, FlagsChooseTheRows) {
  EXPECT_EQ(Run({"history", "lm@3", "--log=loss", "--log=norm(grad(*))", "--steps=100:200",
                 "--source=replay"}),
            kExitOk)
      << err_.str();
  EXPECT_EQ(out_.str(), "nothing is recorded that matches\n");
  const v1::QueryHistoryRequest request = fake_.state()->queries.front();
  EXPECT_EQ(request.run(), "lm@3");
  EXPECT_THAT(request.log(), ElementsAre("loss", "norm(grad(*))"));
  EXPECT_EQ(request.first_step(), 100);
  EXPECT_EQ(request.end_step(), 200);
  EXPECT_EQ(request.source(), v1::HistoryRow::REPLAY);
  struct {
    const char* steps;
    int64_t first, end;
  } ranges[] = {{"7", 7, 8}, {"7:", 7, 0}, {":7", 0, 7}};
  for (const auto& range : ranges) {
    const size_t before = fake_.state()->queries.size();
    EXPECT_EQ(Run({"history", "lm", std::string("--steps=") + range.steps}), kExitOk);
    EXPECT_EQ(fake_.state()->queries[before].first_step(), range.first);
    EXPECT_EQ(fake_.state()->queries[before].end_step(), range.end);
    EXPECT_FALSE(fake_.state()->queries[before].has_source());
  }
  const size_t queries = fake_.state()->queries.size();
  for (const char* steps : {"", ":", "a", "-1", "3:3", "5:3", "1:2:3", "+1", " 1", "1e3"}) {
    EXPECT_EQ(Run({"history", "lm", std::string("--steps=") + steps}), kExitUsage) << steps;
    EXPECT_THAT(err_.str(), HasSubstr("--steps is \"")) << steps;
  }
  EXPECT_EQ(Run({"history", "lm", "--source=both"}), kExitUsage);
  EXPECT_EQ(Run({"history"}), kExitUsage);
  EXPECT_EQ(fake_.state()->queries.size(), queries) << "the mistake is found before any call";
}

TEST_F(CliHistoryTest, EachRunCountsOnceEvenIfNamedTwice) {
  fake_.state()->history = {ScalarRow(1, 0, "loss", 4), ScalarRow(2, 0, "loss", 4)};
  EXPECT_EQ(Run({"history", "lm@*", "lm@1", "--json"}), kExitOk) << err_.str();
  EXPECT_EQ(Lines().size(), 2u);
  EXPECT_EQ(fake_.state()->queries.size(), 2u);
}

TEST_F(CliHistoryTest, JsonLinesHaveEveryBit) {
  const std::vector<double> values = {
      0.1, 1.0 / 3, -0.0, 5e-324, std::numeric_limits<double>::max(), 16777217, -2.5e-9};
  for (const double value : values) {
    fake_.state()->history.push_back(ScalarRow(1, 3, "loss", value));
  }
  EXPECT_EQ(Run({"history", "lm", "--json"}), kExitOk) << err_.str();
  std::vector<Json> lines = Lines();
  ASSERT_EQ(lines.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint64_t>(lines[i]["value"].get<double>()),
              std::bit_cast<uint64_t>(values[i]))
        << values[i];
  }
  EXPECT_EQ(lines[0].dump(),
            R"({"experiment":"lm","version":1,"job":"job-1","step":3,"name":"loss","reduction":"",)"
            R"("source":"forward","replay":"","unix_ms":1700000003000,"value":0.1})");

  fake_.state()->history = {
      ScalarRow(1, 0, "loss", NAN),
      ScalarRow(1, 1, "loss", -INFINITY),
      HistogramRow(1, 2, "relu_1", -1, 0.5, {3, 4}, 5),
      ElementsRow(1, 2, "relu_1", "top_k(2)", {INFINITY, 1}),
      TensorRow<int64_t>(1, 2, "logits", "confusion", v1::I64, {1, 2}, {(1ll << 53) + 1, -1}),
      TensorRow<uint16_t>(1, 2, "w", "full", v1::BF16, {2}, {0x3f80, 0x7f80}),
      TensorRow<float>(1, 2, "loss", "full", v1::F32, {}, {0.5f}),
  };
  EXPECT_EQ(Run({"history", "lm", "--json"}), kExitOk) << err_.str();
  std::vector<std::string> shown;
  for (const Json& line : Lines()) shown.push_back(line["value"].dump());
  EXPECT_THAT(shown,
              ElementsAre("\"NaN\"", "\"-Infinity\"",
                          R"({"low":-1.0,"high":0.5,"counts":[3,4],"outside":5})",
                          R"({"indices":[0,7],"values":["Infinity",1.0]})",
                          R"({"dtype":"i64","dims":[1,2],"values":[9007199254740993,-1]})",
                          R"({"dtype":"bf16","dims":[2],"values":[1.0,"Infinity"]})", "0.5"));
}

TEST_F(CliHistoryTest, CsvHasEveryBitAndQuotesWhatNeedsIt) {
  fake_.state()->history = {ScalarRow(1, 0, "loss", 1.0 / 3),
                            ScalarRow(1, 1, "a \"b\", c", -INFINITY),
                            HistogramRow(1, 2, "relu_1", -1, 1, {3, 4})};
  EXPECT_EQ(Run({"history", "lm", "--csv=-"}), kExitOk) << err_.str();
  const std::string csv =
      "experiment,version,job,step,name,reduction,source,replay,value\n"
      "lm,1,job-1,0,loss,,forward,,0.3333333333333333\n"
      "lm,1,job-1,1,\"a \"\"b\"\", c\",,forward,,-Infinity\n"
      "lm,1,job-1,2,relu_1,histogram(2),replay,replay-1,"
      "\"{\"\"low\"\":-1.0,\"\"high\"\":1.0,\"\"counts\"\":[3,4],\"\"outside\"\":0}\"\n";
  EXPECT_EQ(out_.str(), csv);
  EXPECT_EQ(err_.str(), "");

  EXPECT_EQ(Run({"history", "lm", "--json", "--csv=" + Path("h.csv")}), kExitOk) << err_.str();
  EXPECT_EQ(Read(Path("h.csv")), csv);
  EXPECT_EQ(err_.str(), "3 rows written\n");
  EXPECT_EQ(Lines().size(), 3u);
  EXPECT_EQ(Run({"history", "lm", "--json", "--csv=-"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("--json and --csv=- would mix"));
}

TEST_F(CliHistoryTest, AFileAppearsOnlyWhenItIsComplete) {
  fake_.state()->history = {ScalarRow(1, 0, "loss", 1)};
  std::ofstream(Path("h.csv")) << "old";
  fake_.state()->history_status = absl::NotFoundError("no run lm@9; there are lm@1, lm@2");
  EXPECT_EQ(Run({"history", "lm@9", "--csv=" + Path("h.csv"), "--tensorboard=" + Path("tb")}),
            kExitNotFound);
  EXPECT_THAT(err_.str(), HasSubstr("no run lm@9"));
  EXPECT_EQ(Read(Path("h.csv")), "old");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(home_)) {
    EXPECT_THAT(entry.path().string(), Not(HasSubstr(".tmp")));
    EXPECT_THAT(entry.path().string(), Not(HasSubstr("tfevents")));
  }
  EXPECT_EQ(Run({"history", "lm", "--csv=" + Path("none/h.csv")}), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("none/h.csv"));
}

TEST_F(CliHistoryTest, TensorboardHasAFolderForEachRun) {
  v1::HistoryRow odd = ScalarRow(1, 0, "loss", 1);
  odd.set_experiment("../a/b");
  odd.set_job_id("job-odd");
  v1::HistoryRow again = ScalarRow(1, 0, "w", 2, "norm");
  again.set_replay_id("replay-2");
  fake_.state()->history = {ScalarRow(1, 0, "loss", 1),
                            ScalarRow(2, 0, "loss", 1),
                            odd,
                            ScalarRow(1, 0, "w", 1, "norm"),
                            again,
                            ScalarRow(1, 7, "v", 1, "norm"),
                            ScalarRow(1, 3, "v", 1, "norm"),  // of a later replay of earlier steps
                            TensorRow<float>(1, 2, "w", "full", v1::F32, {1}, {1})};
  EXPECT_EQ(Run({"history", "lm", "--tensorboard=" + Path("tb")}), kExitOk) << err_.str();
  EXPECT_THAT(err_.str(), AllOf(HasSubstr("8 rows written\nshow it: tensorboard --logdir="),
                                HasSubstr("1 rows are left out: ")));
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(Path("tb"))) {
    if (entry.is_regular_file()) {
      found.push_back(std::filesystem::relative(entry.path(), Path("tb")).parent_path());
    }
  }
  EXPECT_THAT(found,
              ::testing::UnorderedElementsAre("lm@1", "lm@1/replay-2", "lm@2", "%2E.%2Fa%2Fb@1"));
  EXPECT_EQ(Run({"history", "lm", "--tensorboard=-"}), kExitUsage);
}

}  // namespace
}  // namespace espalier
